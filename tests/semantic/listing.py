"""What a conversion says that it did not carry, and which losses that covers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from losses import Aspect, Loss, Place, Step, StepKind, is_mapping, key_step, pointer

OF_TYPES = {Aspect.TYPE, Aspect.ORDER, Aspect.MISSING}
ATTRIBUTES_OF = "attributes of "
ALWAYS_SAID = {Aspect.INVENTED}


class Listing:
    """The `not_carried` of one or more conversions in a row.

    An entry covers the loss of exactly the value that it names: by its JSON pointer, or by its
    keys joined by dots, behind any words ("storage of a.b", "key /a/1").
    """

    def __init__(self, *reports: dict):
        self.entries = [
            (loss["what"], loss["reason"]) for report in reports for loss in report["not_carried"]
        ]

    def __bool__(self) -> bool:
        return bool(self.entries)

    def unlisted(self, found: Iterable[Loss]) -> list[Loss]:
        return [loss for loss in found if not self.covers(loss)]

    def covers(self, loss: Loss) -> bool:
        if loss.aspect in ALWAYS_SAID:
            return False
        if self.names(loss.place, loss.aspect):
            return True
        return loss.aspect is Aspect.MISSING and self.covers_all_below(loss)

    def covers_all_below(self, loss: Loss) -> bool:
        """A container that is gone because all that it held is listed."""
        parts = list(parts_of(loss.value, loss.place))
        return bool(parts) and all(
            self.covers(Loss(place, Aspect.MISSING, "", value)) for place, value in parts
        )

    def names(self, place: Place, aspect: Aspect) -> bool:
        if any(self.entry_names(what, reason, place, aspect) for what, reason in self.entries):
            return True
        # Attributes may be listed with the value that has them, or by their names.
        is_attribute = bool(place) and place[-1].kind is StepKind.ATTRIBUTE
        if is_attribute and self.names(place[:-1], Aspect.MISSING):
            return True
        return any(part_names(what, reason, place, aspect) for what, reason in self.entries)

    @staticmethod
    def entry_names(what: str, reason: str, place: Place, aspect: Aspect) -> bool:
        if what.startswith(ATTRIBUTES_OF):
            return False
        if what.startswith("storage of ") and aspect is not Aspect.SHARING:
            return False
        if what.startswith("key ") and aspect is not Aspect.KEY:
            return False
        if "becomes a dict" in reason and aspect not in OF_TYPES:
            return False
        return any(what == form or what.endswith(" " + form) for form in forms(place))

    def mentions(self, word: str) -> bool:
        """Whether an entry has it as a whole word."""
        pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
        said = (f"{what}: {reason}" for what, reason in self.entries)
        return word != "" and any(pattern.search(text) for text in said)


def part_names(what: str, reason: str, place: Place, aspect: Aspect) -> bool:
    """`attributes of a.b`: "its A, the class B, its C; DCP holds plain tensors" covers the loss of
    A, B and C, and no other of this tensor."""
    if not what.startswith(ATTRIBUTES_OF) or not place:
        return False
    tensor, listed = what.removeprefix(ATTRIBUTES_OF), f", {reason.rpartition('; ')[0]}, "
    if aspect is Aspect.TYPE:
        return tensor in forms(place) and ", the class " in listed
    if aspect is Aspect.REQUIRES_GRAD:
        return tensor in forms(place) and ", its requires_grad, " in listed
    name = str(place[-1].name)
    is_listed = any(f", its {form}, " in listed for form in {name, as_shown(name)})
    return place[-1].kind is StepKind.ATTRIBUTE and tensor in forms(place[:-1]) and is_listed


def forms(place: Place) -> set[str]:
    """The ways in which programs name a place."""
    steps = ".".join(step.text(escape=False) for step in place)
    texts = {pointer(place) or "/", steps}
    return texts | {as_shown(text) for text in texts if has_surrogate(text)}


def has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def as_shown(text: str) -> str:
    """What is no Unicode has no form in JSON: it is printed as a person sees it."""
    return "".join(map(shown_character, text))


def shown_character(character: str) -> str:
    if has_surrogate(character):
        stored = character.encode("utf-8", "surrogatepass")
        return "".join(f"\\x{byte:02x}" for byte in stored)
    if character == "\u202e":
        return "\\u202e"
    if character in "'\"\\":
        return "\\" + character
    return character if character.isprintable() else f"\\x{ord(character):02x}"


def parts_of(value: object, place: Place) -> Iterator[tuple[Place, object]]:
    if is_mapping(value):
        yield from (((*place, key_step(key)), item) for key, item in value.items())
    elif isinstance(value, list):
        yield from (
            ((*place, Step(StepKind.INDEX, index)), item) for index, item in enumerate(value)
        )
