"""A bundle's tokenizers, and what stands around its texts: as its metadata says, or as was the rule in 0.1.

Everyone who turns text into ids asks here, so that all of them feed a model the same.
"""

from __future__ import annotations

from clearhead.base.errors import UserError
from clearhead.bundle.folder import Bundle
from clearhead.data.encoding import Tokenizers
from clearhead.data.encodings import Labels, Pairs, Stream, Tags
from clearhead.text.framing import Framing, Framings, template_of
from clearhead.text.tokenizer import Tokenizer


def tokenizers_of(bundle: Bundle) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target, which are often one and the same."""
    target = bundle.tokenizer
    if target is None:
        raise UserError("This bundle has no tokenizer, so that it can neither read nor write text.")
    return bundle.source_tokenizer or target, target


def is_imported(bundle: Bundle) -> bool:
    """Does the model come from another toolkit, whose conventions it then follows?"""
    return isinstance(bundle.metadata.get("source"), dict)


def framings_of(bundle: Bundle) -> Framings:
    """What stands around a bundle's texts, as its metadata says.

    Bundles of clearhead 0.1 say nothing: theirs follows from what they are and where they come from.
    """
    noted, config = bundle.metadata.get("framing"), bundle.config
    if noted is None:
        return _assumed(bundle)
    return Framings.stored(noted, config.source_vocabulary or config.vocabulary, config.vocabulary)


def _assumed(bundle: Bundle) -> Framings:
    config, tokenizers = bundle.config, Tokenizers(*tokenizers_of(bundle))
    source, target = (template_of(one) for one in tokenizers)
    if is_imported(bundle) and source is not None and target is not None:
        source.check(config.source_vocabulary or config.vocabulary)
        target.check(config.vocabulary)
        return (
            Framings(target=target) if config.family == "decoder" else Framings(source=source, target=target)
        )
    if config.family == "decoder":
        return Stream().framings(tokenizers, bool(bundle.metadata.get("documents", False)))
    if config.family != "encoder":
        return Pairs().framings(tokenizers)
    if config.head.kind == "classify":
        return Labels().framings(tokenizers)
    if config.head.kind == "tag":
        return Tags().framings(tokenizers)
    return Framings(source=source or Framing())
