"""One composable pipeline from the model's log-probabilities to what a search compares or draws by."""

from clearhead.decoding.processors.past import Past, Processor, nothing_left
from clearhead.decoding.processors.pipeline import Pipeline, pipeline

__all__ = ["Past", "Pipeline", "Processor", "nothing_left", "pipeline"]
