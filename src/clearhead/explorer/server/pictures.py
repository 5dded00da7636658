"""Pictures as the page names them: a small one by its text, a larger one by a short name.

The text of a small picture stands in the address, so a link to it always works. A larger one is kept here,
under a name made from its content, until newer ones need the room or the server stops. A model's examples
take no room here: they are recognised by their names.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from hashlib import sha256

from clearhead.base.errors import UserError
from clearhead.data.pictures import Sent, is_picture
from clearhead.decoding.pictures import picture_tensor, picture_text
from clearhead.explorer.patches import plain_png
from clearhead.explorer.server.schema import MOST_LETTERS
from clearhead.explorer.session import Session

ROOM = 2**27  # letters of all kept pictures: some 400 of 224 × 224 in colour


def in_an_address(text: str) -> str:
    """What stands for a text in an address: the text itself, or the name of a large picture.

    >>> in_an_address("a text")
    'a text'
    >>> in_an_address(f"picture 1x100x100 {'00' * 10_000}")
    'picture-d02d4c3a0b8f093c'
    """
    if len(text) <= MOST_LETTERS or not is_picture(text):
        return text
    return f"picture-{sha256(text.encode()).hexdigest()[:16]}"


class Pictures:
    """The large pictures that were sent, by name, the latest used last."""

    def __init__(self, room: int = ROOM) -> None:
        self.room = room
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, session: Session, content: bytes, file: str) -> str:
        """A picture file as the model reads it; what stands for it in an address."""
        _refuse_others(session)
        text = picture_text(session.bundle, Sent(content, file))
        name = in_an_address(text)
        if name != text:
            with self._lock:
                self._texts[name] = text
                while len(self._texts) > 1 and sum(map(len, self._texts.values())) > self.room:
                    self._texts.popitem(last=False)
        return name

    def whole(self, session: Session, text: str) -> str:
        """The picture that such a text means; any other text is returned unchanged."""
        if not re.fullmatch(r"picture-[0-9a-f]{16}", text):
            return text
        with self._lock:
            if text in self._texts:
                self._texts.move_to_end(text)
                return self._texts[text]
        for example in session.examples:
            if in_an_address(example) == text:
                return example
        raise UserError("The server no longer has this picture: choose its file again.")

    def png(self, session: Session, text: str) -> bytes:
        """The picture that such a text means, in the model's square."""
        _refuse_others(session)
        whole = self.whole(session, text)
        picture_tensor(session.bundle, whole)  # raises an error for one that does not fit
        return plain_png(whole, session.config.image.size)


def _refuse_others(session: Session) -> None:
    if session.family != "vision":
        raise UserError(f"The model '{session.name}' reads texts, not pictures.")
