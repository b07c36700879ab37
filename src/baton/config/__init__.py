"""Configuration files: a pair (`pair.yaml`) and a recipe (`compare.yaml`), checked field by field.

Every mistake is a `ConfigError` with one line a mistake: the file, the field, the value and the remedy.
"""

from baton.config.files import read_yaml
from baton.config.head_to_head import BudgetConfig, HeadToHeadConfig, MemoryBudgetConfig
from baton.config.labels import LabelRecipe, load_divergence_recipe, load_label_recipe
from baton.config.load import LoadConfig, LoadPointConfig, SloConfig
from baton.config.model import ModelConfig, located
from baton.config.pair import NANO_PAIR, PairConfig, cue_profile, load_pair, pair_folder
from baton.config.recipe import Recipe, RecipeConfig, load_recipe, recipe_options
from baton.config.routers import PointConfig, PolicyConfig, RouterConfig
from baton.config.scorers import (
    SCORERS,
    CallableConfig,
    ConfidenceConfig,
    EmbeddingConfig,
    EquivalenceConfig,
    JudgeConfig,
    JudgeTemplateConfig,
    PolicyHeadConfig,
    PrmConfig,
    ResidentConfig,
    RewardConfig,
    ScorerConfig,
    TokenConfig,
)
from baton.config.task import FieldNames, TaskConfig, pair_options
from baton.config.tracking import TensorboardConfig, TrackingConfig, WandbConfig
from baton.config.validation import ConfigError, Strict, validate

__all__ = [
    "NANO_PAIR",
    "SCORERS",
    "BudgetConfig",
    "CallableConfig",
    "ConfidenceConfig",
    "ConfigError",
    "EmbeddingConfig",
    "EquivalenceConfig",
    "FieldNames",
    "HeadToHeadConfig",
    "JudgeConfig",
    "JudgeTemplateConfig",
    "LabelRecipe",
    "LoadConfig",
    "LoadPointConfig",
    "MemoryBudgetConfig",
    "ModelConfig",
    "PairConfig",
    "PointConfig",
    "PolicyConfig",
    "PolicyHeadConfig",
    "PrmConfig",
    "Recipe",
    "RecipeConfig",
    "ResidentConfig",
    "RewardConfig",
    "RouterConfig",
    "ScorerConfig",
    "SloConfig",
    "Strict",
    "TaskConfig",
    "TensorboardConfig",
    "TokenConfig",
    "TrackingConfig",
    "WandbConfig",
    "cue_profile",
    "load_divergence_recipe",
    "load_label_recipe",
    "load_pair",
    "load_recipe",
    "located",
    "pair_folder",
    "pair_options",
    "read_yaml",
    "recipe_options",
    "validate",
]
