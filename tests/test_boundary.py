import re
import threading
from itertools import accumulate

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from baton.boundary import (
    BUDGET,
    CANCELLED,
    END_OF_TEXT,
    END_OF_THINKING,
    ENTROPY,
    FAILED,
    MARGIN,
    SENTENCE,
    STEP,
    Boundary,
    Cap,
    Cues,
    Delimiter,
    End,
    SegmentMatcher,
    SentenceEnd,
    Shift,
    TextBoundary,
    When,
)
from baton.vocabulary import Vocabulary

CUES = Cues(
    [
        "Wait",
        "Wait,",
        "now",
        "Now,",
        "double-check",
        "check",
        "So ",
        "wait, but",
        "vérifie",
        "é",
        "因此",
        "因此，",
        "但",
    ]
)
AB = Delimiter("aba")


class Letters:
    """Texts are alike as far as they have characters in common."""

    name = "letters"

    def likeness(self, one, other):
        return len({*one} & {*other}) / len({*one} | {*other}), len(other)


SHIFT = Shift(Letters(), 0.3)
EOT, EOTH, TURN = 0, 1, 2

unhurried = settings(deadline=None)  # a busy machine is no failure


def vocabulary(pieces, *, written=False):
    """A vocabulary of these pieces (ids from 3); `written` gives the end-of-thinking token bytes, as Qwen's has."""
    tokens = [b"", b"</think>" if written else b"", b"", *pieces]

    def encode(text):
        return [tokens.index(bytes([byte]), 3) for byte in text.encode()]

    control = {EOT: "<|end|>", TURN: "<|turn|>"} | ({} if written else {EOTH: "</think>"})
    return Vocabulary(tokens, encode, frozenset({EOT}), end_of_thinking=EOTH, control=control)


BYTES = vocabulary([bytes([byte]) for byte in range(256)])


def match(pieces, until, end=None, *, vocabulary_of=vocabulary, **options):
    """Pushes the pieces as tokens and then `end`; returns the matcher, closed by END_OF_TEXT if it did not end."""
    data = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    matcher = SegmentMatcher(until, vocabulary_of(data), **options)
    for token in [*range(3, 3 + len(data)), *([] if end is None else [end])]:
        if matcher.push(token):
            break
    else:
        matcher.close(END_OF_TEXT)
    return matcher


def outcome(pieces, until, end=None, **options):
    matcher = match(pieces, until, end, **options)
    return matcher.ended_by, matcher.text, matcher.overshoot


def ended(text, boundary, context="", **options):
    """Offset at which the boundary ends a text written one byte a token; None where it does not."""
    matcher = match([bytes([b]) for b in text.encode()], [boundary], context=context, **options)
    return len(matcher.text) if matcher.ended_by is boundary else None


# A second, simpler implementation that reads the whole text at once.


def delimiter_end(delimiter, context, text):
    whole = context + text
    for end in range(len(context) + 1, len(whole) + 1):
        start = end - len(delimiter)
        longer_run = len(set(delimiter)) == 1 and start > 0 and whole[start - 1] == delimiter[0]
        if start >= 0 and whole[start:end] == delimiter and not longer_run:
            return end - len(context)
    return None


HAN = "漢因此但也"


def cue_end(words, context, text):
    whole = context + text

    def letter(i):
        return 0 <= i < len(whole) and (whole[i].isalnum() or whole[i] == "_") and whole[i] not in HAN

    def word(i):
        return letter(i) or (letter(i - 1) and whole[i : i + 1] in ("'", "’") and letter(i + 1))

    for start in range(len(whole)):
        for cue in sorted(words, key=len, reverse=True):
            end = start + len(cue)
            if not whole.startswith(cue, start) or (word(start) and word(start - 1)):
                continue
            if word(end - 1) and word(end):
                continue
            if end > len(context):
                return end - len(context)
            break
    return None


def sentence_end(context, text):
    context = context[-64:]
    return next((end - len(context) for end in sentence_ends(context + text) if end > len(context)), None)


def shift_end(boundary, context, text):
    whole, last, before = context + text, 0, ""
    for end in sentence_ends(whole):
        sentence = whole[last:end].strip()
        sentence = sentence if re.search(r"[^\W_]", sentence) else ""
        if before and sentence and end > len(context) and boundary.encoder.likeness(before, sentence)[0] < 0.3:
            return end - len(context)
        last, before = end, sentence or before
    return None


def sentence_ends(whole):
    last = 0
    for found in re.finditer(r"""[.!?…．。！？]+(?:[])}"'”’*」]|[.!?…．。！？])*|\n\n""", whole):
        start, end = found.span()
        before, run, following = whole[:start][-64:], found.group(), whole[end : end + 1]
        marks = re.sub(r"""[])}"'”’*」]""", "", run)
        if run == "\n\n":
            if not whole[max(last, start - 64) : start].strip():
                continue
        elif following not in ("", "\n", "\r") and not re.search("[。！？]", run):
            if not following.isspace() and (following not in HAN or (len(marks) > 1 and not set(marks) & {*"!?"})):
                continue
            if marks == "…" and following in HAN:
                continue
            if set(marks) == {"!"} and re.search(r"[\d)]$|(^|\W|[漢因此但也])[^\W\d_漢因此但也]$", before):
                continue
            short = r"(^|[^\w.]|[漢因此但也])([eEiI]\.[ge]|[cC]f|vs|Mrs?|Ms|Dr|Prof|St|Fig|Eqs?|approx|resp|Sec|Thm)$"
            if marks in (".", "．") and re.search(short, before):
                continue
            if marks in (".", "．") and re.search(r"(^|\n)[\s>#*_-]*\d\d?\d?$", before):
                continue
        last = end
        yield end


def reference_end(boundary, context, text):
    if isinstance(boundary, Shift):
        return shift_end(boundary, context, text)
    if isinstance(boundary, Delimiter):
        return delimiter_end(boundary.text, context, text)
    return cue_end(boundary.words, context, text) if isinstance(boundary, Cues) else sentence_end(context, text)


def reference(until, context, text, thinking):
    """(boundary, end offset) for a text that is over; the offset is None at the end of the text."""
    close = (context + text).find("</think>") - len(context) if thinking else -len(context) - 1
    while thinking and -len(context) <= close <= -8:
        close = (context + text).find("</think>", close + len(context) + 1) - len(context)
    thought = close >= -len(context)
    seen = text[: max(0, close)] if thought else text
    ends = [(end, n) for n, b in enumerate(until) if (end := reference_end(b, context, seen)) is not None]
    if ends:
        return until[min(ends)[1]], min(ends)[0]
    return (END_OF_THINKING, close + 8) if thought else (END_OF_TEXT, None)


PARTS = [
    *" .!?\n,)\"'’*<abé漢。”…_-(n35，．」",
    *["因此", "但", "也因此，"],
    *["\n\n", "Wait", "Wait,", "now", " now", "know", "wait, but", "double-check", "check", "vérifie", "So "],
    *["3.14", "\n3. ", "e.g. ", "Dr.", "No. ", "n! ", "(n-1)!", "5!", "</think>", "</", "think>", "aba", "🙂", "The"],
]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)
TEXT_BOUNDARIES = [STEP, SENTENCE, SHIFT, CUES, AB, *map(Delimiter, ("é漢", "。", "<", "/t"))]
BOUNDARIES = st.lists(st.sampled_from(TEXT_BOUNDARIES), max_size=3)


@st.composite
def splits(draw, texts=TEXTS):
    """A text's bytes cut at random places; some cuts are empty tokens."""
    data = draw(texts).encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=len(data))))
    return [data[i:j] for i, j in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@unhurried
@given(splits(), BOUNDARIES, TEXTS, st.booleans())
@example([b"a.", b"</", b"think>b"], [SENTENCE], "", True)
@example([b"\nfoo"], [STEP], "a\n", False)
@example([b"\xe3\x80", b"\x82b"], [SENTENCE], "", False)
def test_a_segment_ends_at_the_first_token_edge_after_the_reference_end_for_any_split(pieces, until, context, thinking):
    matcher = match(pieces, until, context=context, thinking=thinking)
    boundary, end = reference(until, context, b"".join(pieces).decode(), thinking)
    assert matcher.ended_by == boundary
    if end is None:
        assert matcher.kept == len(pieces)
    else:
        byte = len(b"".join(pieces).decode()[:end].encode())
        assert matcher.kept == next(n for n, edge in enumerate(accumulate(map(len, pieces)), 1) if edge >= byte)
    assert matcher.overshoot == len(matcher.ids) - matcher.kept


@unhurried
@given(st.data(), st.sampled_from([STEP, SENTENCE, SHIFT, CUES, AB]), TEXTS, TEXTS)
def test_a_scanner_finds_the_reference_end_for_any_split_into_characters(data, boundary, context, text):
    scanner, at = boundary.scanner(context), 0
    while at < len(text) and scanner.found is None:
        settled = scanner.settled
        assert settled <= (reference_end(boundary, context, text) or len(text) + 100)
        step = data.draw(st.integers(1, len(text)))
        scanner.feed(text[at : at + step])
        at += step
    scanner.close()
    assert scanner.found == reference_end(boundary, context, text)
    if boundary is CUES and scanner.found:
        assert (context + text)[: len(context) + scanner.found].endswith(scanner.cue)


@unhurried
@given(splits(), BOUNDARIES, TEXTS, st.sampled_from([EOT, EOTH, TURN]), st.none() | st.integers(1, 9), st.data())
@example([b"<", b"/", b"x"], [Delimiter("<")], "", TURN, None, None)
def test_settled_tokens_never_decrease_and_are_always_kept(pieces, until, context, end, cap, data):
    if data and data.draw(st.booleans()):
        until = [*until, When(ENTROPY, ">", 0.9, keep=data.draw(st.booleans()))]
    matcher = SegmentMatcher(until, vocabulary(pieces), context, cap=cap, whole_characters=True)
    settled = [matcher.settled_tokens]
    for token in [*range(3, 3 + len(pieces)), end]:
        over = matcher.push(token, {ENTROPY: data.draw(st.floats(0, 1))} if data else None)
        settled.append(matcher.settled_tokens)
        assert matcher.settled_tokens <= matcher.kept <= len(matcher.ids)
        if over:
            break
    matcher.close(FAILED)
    assert settled == sorted(settled)
    assert settled[-1] <= matcher.settled_tokens == matcher.kept


@unhurried
@given(splits(), BOUNDARIES, TEXTS, st.booleans(), st.sampled_from([None, EOT, EOTH]), st.integers(1, 20))
def test_stopping_at_stop_ids_and_stepping_while_open_loses_nothing(pieces, until, context, thinking, end, cap):
    options = {"context": context, "thinking": thinking, "cap": cap}
    everything = match(pieces, until, end, **options)
    engine = SegmentMatcher(until, vocabulary(pieces), **options)
    ids, asked, over = [*range(3, 3 + len(pieces)), *([] if end is None else [end])], 0, False
    while asked < len(ids) and not over:
        run = 1
        while not engine.open and ids[asked + run - 1] not in engine.stop_ids and asked + run < len(ids):
            run += 1
        over = [engine.push(token) for token in ids[asked : asked + run]][-1]
        asked += run
    engine.close(END_OF_TEXT)
    assert (engine.ended_by, engine.kept, engine.detail) == (everything.ended_by, everything.kept, everything.detail)


@unhurried
@given(splits(), BOUNDARIES, TEXTS)
def test_no_match_begins_outside_the_stop_ids(pieces, until, context):
    matcher = SegmentMatcher(until, vocabulary(pieces), context)
    for token in range(3, 3 + len(pieces)):
        was_open = matcher.open
        over = matcher.push(token)
        assert was_open or token in matcher.stop_ids or not (over or matcher.open)
        if over:
            break


@unhurried
@given(st.lists(st.binary(max_size=3), max_size=8), BOUNDARIES)
def test_bytes_that_form_no_character_change_nothing_for_any_split(pieces, until):
    whole = match([bytes([b]) for b in b"".join(pieces)], until)
    parts = match(pieces, until)
    assert parts.ended_by == whole.ended_by
    if whole.ended_by is not END_OF_TEXT:
        edges = list(accumulate(map(len, pieces)))
        assert parts.kept == next(n for n, edge in enumerate(edges, 1) if edge >= whole.kept)


# Sentences.


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("It is so. Then", "It is so."),
        ("Really?! Yes", "Really?!"),
        ("Well... then", "Well..."),
        ("Hm… then", "Hm…"),
        ('He said "no." Then', 'He said "no."'),
        ("(It is.) Then", "(It is.)"),
        ("**It is.** Then", "**It is.**"),
        ("Pi is 3.14 here. Then", "Pi is 3.14 here."),
        ("Use v1.2.3 of a.py. Then", "Use v1.2.3 of a.py."),
        ("\n3. Add two. Then", "\n3. Add two."),
        ("  - 12. Add two. Then", "  - 12. Add two."),
        ("So it is 3. Then", "So it is 3."),
        ("2024. Then", "2024."),
        ("E.g. this, i.e. that, cf. Fig. 3. Then", "E.g. this, i.e. that, cf. Fig. 3."),
        ("Dr. Eq. 5 vs. Mr. X. Then", "Dr. Eq. 5 vs. Mr. X."),
        ("No. Let me check. So", "No."),
        ("It weighs 3 kg. Then", "It weighs 3 kg."),
        ("There are n! ways, 5! or (n-1)! of them. Then", "There are n! ways, 5! or (n-1)! of them."),
        ("Stop! Then", "Stop!"),
        ("It is 5!\nThen", "It is 5!"),
        ("It is 5!?", "It is 5!?"),
        ("Is it 5! ", None),
        ("也许。然后", "也许。"),
        ("他说：「好！」然后", "他说：「好！」"),
        ("（是的。）然后", "（是的。）"),
        ("真的吗？！那么", "真的吗？！"),
        ("所以 x = 5.因此", "所以 x = 5."),
        ("对吗?那么", "对吗?"),
        ("好! 那么", "好!"),
        ("例如e.g. 这个。", "例如e.g. 这个。"),
        ("嗯……我想...好", None),
        ("嗯……\n我想", "嗯……"),
        ("约为３．１４米．因此", "约为３．１４米．"),
        ("\n1．首先看．然后", "\n1．首先看．"),
        ("\n1.首先看。然后", "\n1.首先看。"),
        ("共有5!种，即 n!种。然后", "共有5!种，即 n!种。"),
        ("v1.2版，a.py文件。", "v1.2版，a.py文件。"),
        ("他说“好。”然后", "他说“好。”"),
        ("a title\n\nThen", "a title\n\n"),
        ("e.g.\n\nThen", "e.g."),
        ("one line\nanother", None),
        ("\n\nThen", None),
        ("no end", None),
        ("The end.", "The end."),
    ],
)
def test_sentence_end(text, sentence):
    assert ended(text, SENTENCE) == (None if sentence is None else len(sentence))


@pytest.mark.parametrize(
    ("context", "text", "end"),
    [
        ("It is.", " Then it was. So", len(" Then it was.")),
        ("It is.", '" Then', 1),
        ("It is.", "\n\nThen", None),
        ("It is. ", " \n\nThen", None),
        ("A title", "\n\nThen", 2),
        ("A title\n", "\nThen", 1),
        ("\n\n3", ". Add", None),
        ("x = 3", ". Add", 1),
        ("e.", "g. this", None),
        ("n", "! ways", None),
    ],
)
def test_a_sentence_end_uses_the_text_before_the_segment(context, text, end):
    assert ended(text, SENTENCE, context) == end


# Delimiters.


@pytest.mark.parametrize(
    ("context", "text", "end"),
    [
        ("", "aba. aab. cdc. dd.", len("aba. aab. cdc.")),
        ("", "cdc. dd.", None),
        ("aba.", " cdc. dd.", len(" cdc.")),
        ("aba. cd", "c. dd. aa.", len("c.")),
        ("aba. cdc.", " dcd. aa.", len(" dcd. aa.")),
        ("", "aba. ! cdc.", len("aba. ! cdc.")),
    ],
)
def test_a_shift_ends_after_the_sentence_that_turns_away_from_the_one_before(context, text, end):
    assert ended(text, SHIFT, context) == end


def test_what_an_encoder_read_to_decide_is_told():
    matcher = match(["aba.", " aab.", " cdc.", " d"], [SHIFT])
    assert matcher.text == "aba. aab. cdc."
    assert matcher.helper_tokens == {"letters": len("aab.") + len("cdc.")}


def test_a_whole_text_is_scanned_from_a_place_as_a_segment_that_begins_there():
    text = "He paid 3." + "14 pounds. Wait, no.\n\n" + "So it was less."
    assert SENTENCE.scan(text, 10).found == len("14 pounds."), "the digit before it makes a number of the point"
    assert Cues(["Wait"]).scan(text, 0).cue == "Wait"
    assert STEP.scan(text, 0).found == text.index("So")
    assert STEP.scan(text, text.index("So")).found is None
    assert SENTENCE.scan(text, text.index("So")).found == len("So it was less.")


def test_a_run_of_newlines_is_one_step_boundary():
    assert ended("a\n\n\nb", STEP) == 3
    assert ended("\n\nb", STEP, "a\n\n") is None
    assert ended("\nb", STEP, "a\n\n") is None
    assert ended("\nb", STEP, "a\n") == 1
    assert ended("\nb\n\nc", STEP, "a\n\n") == 4


def test_a_delimiter_may_begin_before_the_segment_but_not_end_there():
    assert ended("ba rest", AB, "xa") == 2
    assert ended("x aba", AB, "aba") == 5


# Cues.


@pytest.mark.parametrize(
    "word",
    ["know", "snow", "known", "unknown", "knowledge", "now_here", "now7", "now's", "Waiting", "await", "Against"],
)
def test_a_cue_inside_a_word_never_fires(word):
    cues = Cues(["now", "Wait", "wait", "Again"])
    assert ended(f"I {word} it", cues) is None
    assert outcome([f" {word}", " it", " is"], [cues])[0] is END_OF_TEXT
    assert ended(word[1:] + " it", cues, "I " + word[:1]) is None


@pytest.mark.parametrize(
    ("text", "cue"),
    [
        ("Wait, no", "Wait,"),
        ("Wait no", "Wait"),
        ("Wait", "Wait"),
        ("so wait, but", "wait, but"),
        ("so wait, bunches now.", "now"),
        ("double-check it", "double-check"),
        ("double-checked; check", "check"),
        ("'now' is", "now"),
        ("WAIT now", "now"),
        ("So it", "So"),
        ("vérifie !", "vérifie"),
        ("我们因此得到", "因此"),
        ("也因此，得到", "因此，"),
        ("好的。但 x", "但"),
        ("所以Wait，再看", "Wait"),
        ("因now此", "now"),
    ],
)
def test_the_leftmost_and_then_the_longest_cue_fires_and_is_told(text, cue):
    matcher = match(list(text), [CUES])
    assert matcher.ended_by is CUES
    assert matcher.detail == cue
    assert matcher.text.endswith(cue)


def test_a_comma_that_belongs_to_the_cue_is_kept_and_a_token_that_only_confirms_is_overshoot():
    assert outcome(["Wait", ",", " no"], [CUES]) == (CUES, "Wait,", 0)
    assert outcome(["Wait", " no", " more"], [CUES]) == (CUES, "Wait", 1)


def test_a_chinese_cue_is_decided_by_its_own_last_token_unless_a_longer_one_may_follow():
    assert outcome(["好，", "但", "是"], [Cues(["但"])])[1:] == ("好，但", 0)
    assert outcome(["也因", "此", "，", "得"], [CUES])[1:] == ("也因此，", 0)
    assert outcome(["也因", "此", "得"], [CUES])[1:] == ("也因此", 1)
    assert outcome(["好", b"\xe4\xbd", b"\x86", "是"], [Cues(["但"])])[1:] == ("好但", 0)


def test_a_cue_with_a_trailing_blank_leaves_no_blank_at_the_seam():
    assert Cues(["So ", "So"]).words == ("So",)
    assert outcome(["So", " the", " next"], [Cues(["So "])]) == (Cues(["So"]), "So", 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cues([]), r"cues\.words: \[\]"),
        (lambda: Cues(["Wait", " "]), r"cues\.words: .*' '.* remove it"),
        (lambda: Cues("Wait"), r"cues\.words: 'Wait' is one string"),
        (lambda: Delimiter(""), r"delimiter\.text: ''"),
        (lambda: Cap(0), r"cap\.tokens: 0 .* 1 or more"),
        (lambda: When("surprise", ">", 1.0), r"when\.feature: 'surprise' is unknown; use one of entropy"),
        (lambda: When(ENTROPY, "=", 1.0), r"when\.op: '=' is unknown"),
        (lambda: When(ENTROPY, ">", float("nan")), r"when\.threshold: nan"),
        (lambda: When(ENTROPY, ">", 1.0, after=-1), r"when\.after: -1"),
        (lambda: When(ENTROPY, ">", 1.0, within=0), r"when\.within: 0 tokens all pass by when\.after \(0\)"),
        (lambda: SegmentMatcher([], BYTES, cap=0), r"cap: 0"),
    ],
)
def test_bad_knobs_name_the_field_the_value_and_the_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Tokens.


@pytest.mark.parametrize("token", [".\n\n", "?\n\n", "!\n\n", ").\n\n"])
def test_a_token_with_a_sentence_end_and_a_blank_line_is_kept_whole_and_ends_both(token):
    for until in ([SENTENCE], [STEP], [STEP, SENTENCE]):
        boundary, text, overshoot = outcome(["so it is", token, "Then"], until)
        assert (boundary, text, overshoot) == (until[-1], "so it is" + token, 0)


def test_the_earliest_end_wins_and_then_the_order():
    first, second = Delimiter("b", name="first"), Delimiter("ab", name="second")
    assert outcome(["xabx"], [second, first])[0] is second
    assert outcome(["xabx"], [first, second])[0] is first
    assert outcome(["a. b\n\n"], [STEP, SENTENCE])[0] is SENTENCE


def test_a_decided_end_waits_for_one_that_may_still_come_earlier():
    late, cut = Cues(["now, then but", "now, then"]), Delimiter("then", name="cut")
    for last, winner in [(" but", cut), (" or", late)]:  # " or" leaves a tie, which the order decides
        assert outcome(["now", ", then", last, " x"], [late, cut])[0] is winner
    earlier = Cues(["wait"])
    assert outcome(["wait", "'", " x"], [Delimiter("'"), earlier]) == (earlier, "wait", 2)
    assert outcome(["wait", "'", "s x"], [Delimiter("'", name="quote"), earlier])[1:] == ("wait'", 1)


def test_a_character_split_between_tokens_is_read_whole():
    assert outcome([b"a\xe3\x80", b"\x82b", "c"], [SENTENCE])[1:] == ("a。b", 0)
    assert outcome(["a", b"\xc3", b"\xa9", " b"], [Cues(["é"])])[1:] == ("a" + "é b", 0)
    assert outcome(["a ", b"\xc3", b"\xa9", " b"], [Cues(["é"])])[1:] == ("a é", 1)


# Ends of every segment.


def test_end_of_text_is_kept():
    matcher = match(["no end"], [SENTENCE], EOT)
    assert (matcher.ended_by, matcher.kept, matcher.overshoot) == (END_OF_TEXT, 2, 0)


@pytest.mark.parametrize("written", [False, True])
def test_end_of_thinking_is_kept_while_thinking_and_ordinary_after(written):
    def of(pieces):
        return vocabulary(pieces, written=written)

    matcher = match(["no end"], [SENTENCE], EOTH, vocabulary_of=of)
    assert (matcher.ended_by, matcher.kept, matcher.overshoot) == (END_OF_THINKING, 2, 0)
    matcher = match(["no end"], [SENTENCE], EOTH, vocabulary_of=of, thinking=False)
    assert (matcher.ended_by, matcher.kept) == (END_OF_TEXT, 2)
    matcher = match(["The end."], [SENTENCE], EOTH, vocabulary_of=of)
    assert (matcher.ended_by, matcher.kept, matcher.overshoot) == (SENTENCE, 1, 1)


def test_end_of_thinking_written_in_several_tokens_is_found():
    assert outcome(["so", "</", "think", ">\n\n", "x"], [STEP]) == (END_OF_THINKING, "so</think>\n\n", 0)
    assert outcome(["so.", "</", "think", ">", "x"], [SENTENCE]) == (SENTENCE, "so.", 3)
    assert outcome(["so", "</", "thin", "g>", " x"], [SENTENCE])[0] is END_OF_TEXT
    assert outcome(["think>", "x"], [], context="so</")[0] is END_OF_THINKING
    assert outcome(["so", "</think>", " x"], [], thinking=False)[0] is END_OF_TEXT


def test_a_boundary_that_the_end_of_text_confirms_makes_the_end_overshoot():
    assert outcome(["It is."], [SENTENCE], EOT) == (SENTENCE, "It is.", 1)
    assert outcome(["so now"], [CUES], EOT) == (CUES, "so now", 1)


def test_ends_in_until_change_nothing():
    assert outcome(["a", "b"], [END_OF_TEXT, BUDGET], EOT)[0] is END_OF_TEXT


# Caps.


def test_the_smallest_cap_ends_the_segment_and_undecided_matches_do_not_count():
    small = Cap(2)
    assert outcome(["a", ".", " b"], [SENTENCE, small], cap=3) == (small, "a.", 0)
    assert outcome(["a", ".", " b", " c"], [Cap(4), SENTENCE], cap=3) == (SENTENCE, "a.", 1)
    assert outcome(["a", " b", " c"], [SENTENCE, Cap(3)], cap=3)[0] is BUDGET
    assert outcome(["a", "b"], [], cap=1, cap_reason=FAILED)[:2] == (FAILED, "a")


def test_an_end_decided_before_the_cap_counts_though_it_waits():
    quote = Delimiter("'")
    assert outcome(["wait", "'", " x"], [quote, Cues(["wait"])], cap=2) == (quote, "wait'", 0)


def test_a_cap_leaves_no_character_in_two_pieces_where_asked():
    pieces = ["a", *(bytes([b]) for b in "🙂".encode()), "b", "c"]
    assert match(pieces, [], cap=2).kept == 2
    assert match(pieces, [], cap=2, whole_characters=True).text == "a🙂"
    assert match(pieces, [], cap=1, whole_characters=True).text == "a"
    assert match(["a", b"\xf0", b"\xf0", b"\xf0", b"\xf0", b"\xf0"], [], cap=2, whole_characters=True).kept <= 5


# Features.


def features_run(entropies, until, text="abcdefgh", **options):
    matcher = SegmentMatcher(until, BYTES, **options)
    for token, entropy in zip(BYTES.encode(text), entropies, strict=False):
        if matcher.push(token, {ENTROPY: entropy, MARGIN: 1.0 - entropy}):
            break
    return matcher


@pytest.mark.parametrize(
    ("when", "text", "overshoot"),
    [
        (When(ENTROPY, ">", 0.5), "abc", 0),
        (When(ENTROPY, ">", 0.5, keep=False), "ab", 1),
        (When(ENTROPY, ">=", 0.5), "ab", 0),
        (When(MARGIN, "<", 0.5), "abc", 0),
        (When(MARGIN, "<=", 0.5, keep=False), "a", 1),
        (When(ENTROPY, ">", 0.5, after=3), "abcd", 0),
        (When(ENTROPY, ">", 0.05, keep=False), "", 1),
        (When(ENTROPY, ">", 0.5, within=3), "abc", 0),
        (When(ENTROPY, ">", 0.5, after=3, within=4), "abcd", 0),
    ],
)
def test_a_feature_ends_the_segment_at_the_first_token_that_crosses(when, text, overshoot):
    matcher = features_run([0.1, 0.5, 0.9, 0.8, 0.1], [when])
    assert (matcher.ended_by, matcher.text, matcher.overshoot) == (when, text, overshoot)


def test_a_feature_that_may_fire_at_the_first_tokens_only_lets_the_others_pass():
    assert features_run([0.1, 0.5, 0.9, 0.8, 0.1], [When(ENTROPY, ">", 0.5, within=2)]).ended_by is None


def test_a_missing_feature_is_an_error_that_names_it():
    matcher = SegmentMatcher([When(ENTROPY, ">", 0.5)], BYTES)
    with pytest.raises(ValueError, match="features: no entropy for this token"):
        matcher.push(5, {MARGIN: 0.1})


def test_the_earlier_of_a_feature_and_a_text_boundary_wins():
    leave, keep = When(ENTROPY, ">", 0.5, keep=False), When(ENTROPY, ">", 0.5)
    assert features_run([0, 0, 0.9], [leave, SENTENCE], "a. b").ended_by is leave
    assert features_run([0, 0, 0.9], [SENTENCE, leave], "a. b").ended_by is SENTENCE
    assert features_run([0, 0, 0.9], [keep, SENTENCE], "a. b").ended_by is SENTENCE
    assert features_run([0, 0.9, 0, 0], [keep, SENTENCE], "a.b c").ended_by is keep


def test_a_feature_inside_a_character_waits_for_no_more_than_is_streamed():
    matcher = SegmentMatcher(
        [Cues(["Wait"]), When(ENTROPY, ">", 0.5, keep=False)], vocabulary([b"Wa", b"\xf0", b"\x9f"])
    )
    for token, entropy in [(3, 0.0), (4, 0.0), (5, 0.9)]:
        matcher.push(token, {ENTROPY: entropy})
    assert matcher.settled_tokens == 2
    matcher.close()
    assert (matcher.ended_by.name, matcher.kept) == ("entropy", 2)


def test_an_uncertain_end_of_text_is_left_out_where_asked():
    for keep, ended_by, kept in [(False, "entropy", 1), (True, "end_of_text", 2)]:
        matcher = SegmentMatcher([When(ENTROPY, ">", 0.5, keep=keep)], BYTES)
        matcher.push(5, {ENTROPY: 0.0})
        assert matcher.push(EOT, {ENTROPY: 0.9})
        assert (matcher.ended_by.name, matcher.kept) == (ended_by, kept)


# The matcher's life.


def test_tokens_pushed_after_the_end_are_overshoot():
    matcher = SegmentMatcher([AB], BYTES)
    assert [matcher.push(token) for token in BYTES.encode("abaxy")] == [False, False, True, True, True]
    assert (matcher.text, matcher.kept, matcher.overshoot, matcher.settled_tokens) == ("aba", 3, 2, 3)
    assert not matcher.open


def test_a_stopped_engine_leaves_all_tokens_and_its_reason():
    for reason in (CANCELLED, FAILED):
        matcher = SegmentMatcher([SENTENCE], BYTES)
        for token in BYTES.encode("It is."):
            matcher.push(token)
        matcher.close(reason)
        assert (matcher.ended_by, matcher.kept, matcher.overshoot) == (reason, 6, 0)
        matcher.close(END_OF_TEXT)
        assert matcher.ended_by is reason


def test_a_segment_without_boundaries_streams_every_token_at_once():
    matcher = SegmentMatcher([], BYTES, thinking=False)
    for n, token in enumerate(BYTES.encode("Wait. No.\n\n漢"), 1):
        assert not matcher.push(token)
        assert matcher.settled_tokens == n


def test_tokens_behind_an_undecided_match_are_held_back():
    matcher = SegmentMatcher([CUES], vocabulary([b"so ", b"now", b"'", b"s it"]))
    settled = []
    for token in (3, 4, 5, 6):
        matcher.push(token)
        settled.append((matcher.settled_tokens, matcher.open))
    assert settled == [(1, False), (2, True), (2, True), (4, False)]


def test_stop_ids_leave_out_tokens_that_cannot_matter():
    pieces = [
        b" the",
        b" known",
        b" now",
        b"now",
        b" n",
        b" in",
        b".\n\n",
        b"\n",
        b".com",
        b"W",
        b"\xe3",
        b"\xc3",
        b"x<",
    ]
    tokens = vocabulary(pieces)

    def stops(boundary):
        return [pieces[i - 3] for i in sorted(boundary.stop_ids(tokens))]

    assert stops(STEP) == [b".\n\n", b"\n"]
    assert stops(SENTENCE) == [b".\n\n", b"\n", b"\xe3"]
    assert stops(Cues(["now", "Wait"])) == [b" now", b"now", b" n", b"W"]
    assert stops(Cues(["é"])) == [b"\xc3"]
    assert stops(Cap(5)) == stops(When(ENTROPY, ">", 1.0)) == []
    assert SegmentMatcher([STEP], tokens).stop_ids == {EOT, EOTH, 9, 10, 15}
    assert SegmentMatcher([STEP], tokens, thinking=False).stop_ids == {EOT, 9, 10}


def test_what_is_settled_is_not_read_in_the_middle_of_a_push():
    inside, go_on = threading.Event(), threading.Event()

    class Slow(SentenceEnd):
        def scanner(self, context):
            scanner = super().scanner(context)
            feed = scanner.feed

            def slow(text):
                inside.set()
                assert go_on.wait(5)
                feed(text)

            scanner.feed = slow
            return scanner

    tokens = Vocabulary(tokens=[b"", b".", b"\n"], encode=lambda text: [], end_of_text=frozenset([0]))
    matcher = SegmentMatcher([Slow()], tokens, thinking=False)
    engine = threading.Thread(target=matcher.push, args=(1,))
    engine.start()
    assert inside.wait(5)
    seen: list[int] = []
    reader = threading.Thread(target=lambda: seen.append(matcher.settled_tokens))
    reader.start()
    reader.join(0.05)
    assert not seen, "the '.' may end a sentence, which is not known yet"
    go_on.set()
    engine.join()
    reader.join()
    assert seen == [1]


def test_names_are_stable():
    boundaries: list[Boundary] = [STEP, SENTENCE, CUES, Cap(1), When(ENTROPY, ">", 1.0), When("margin", "<", 0.1)]
    assert [b.name for b in boundaries] == ["step", "sentence", "cues", "cap", "entropy", "margin"]
    assert isinstance(END_OF_TEXT, End)
    assert [b.name for b in (END_OF_THINKING, BUDGET)] == ["end_of_thinking", "budget"]
    assert SentenceEnd() == SENTENCE
    assert not isinstance(Cap(1), TextBoundary)
