"""Whether a JSON document is what a schema of docs/schema describes.

Checks the keywords that our schemas use; one that it does not know is an error. The schemas are
open, since a later version may add keys: here a key that none of them names is a fault, so that
everything that is printed is described.
"""
import json
import pathlib
import re

SCHEMAS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "schema"

TYPES = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float),
    "boolean": bool, "null": type(None),
}


def check_type(value, wanted, _, where):
    names = [wanted] if isinstance(wanted, str) else wanted
    is_right = any(isinstance(value, TYPES[name]) for name in names)
    if isinstance(value, bool):
        is_right = "boolean" in names
    yield from [] if is_right else [f"{where}: is no {wanted}"]


def check_properties(value, properties, schema, where):
    for key, item in value.items() if isinstance(value, dict) else ():
        if key in properties:
            yield from faults(item, properties[key], f"{where}/{key}")
        elif "additionalProperties" not in schema:
            yield f"{where}: '{key}' is not in the schema"


def check_additional(value, additional, schema, where):
    for key, item in value.items() if isinstance(value, dict) else ():
        if key not in schema.get("properties", {}):
            yield from faults(item, additional, f"{where}/{key}")


def check_required(value, required, _, where):
    yield from (f"{where}: '{key}' is missing" for key in required if key not in value)


def check_items(value, items, _, where):
    for index, item in enumerate(value if isinstance(value, list) else ()):
        yield from faults(item, items, f"{where}/{index}")


def check_one_of(value, choices, _, where):
    fitting = sum(not list(faults(value, choice, where)) for choice in choices)
    yield from [] if fitting == 1 else [f"{where}: fits {fitting} of {len(choices)} choices"]


def fails(is_wrong, text):
    return lambda value, wanted, _, where: (
        [f"{where}: {value!r} {text} {wanted!r}"] if is_wrong(value, wanted) else [])


definitions = {}  # of the schema that is being checked


def check_reference(value, reference, _, where):
    prefix = "#/$defs/"
    assert reference.startswith(prefix), reference
    schema = definitions
    for step in reference.removeprefix(prefix).split("/"):
        schema = schema[step]
    yield from faults(value, schema, where)


KEYWORDS = {
    "$ref": check_reference,
    "type": check_type,
    "properties": check_properties,
    "additionalProperties": check_additional,
    "required": check_required,
    "items": check_items,
    "oneOf": check_one_of,
    "enum": fails(lambda value, wanted: value not in wanted, "is not among"),
    "const": fails(lambda value, wanted: value != wanted, "is not"),
    "minimum": fails(lambda value, wanted: value < wanted, "is below"),
    "maxItems": fails(lambda value, wanted: len(value) > wanted, "is longer than"),
    "minItems": fails(lambda value, wanted: len(value) < wanted, "is shorter than"),
    "minLength": fails(lambda value, wanted: len(value) < wanted, "is shorter than"),
    "pattern": fails(lambda value, wanted: not re.search(wanted, value), "does not match"),
}
NOTES = {"$schema", "$id", "$defs", "title", "description"}


def faults(value, schema, where):
    if isinstance(schema, bool):
        if not schema:
            yield f"{where}: nothing may be here"
        return
    # The type first: the other keywords rely on it.
    for keyword in sorted(schema, key=lambda word: word != "type"):
        if keyword in NOTES:
            continue
        found = list(KEYWORDS[keyword](value, schema[keyword], schema, where))
        yield from found
        if found and keyword == "type":
            return


def document_faults(schema_name, document):
    schema = json.loads((SCHEMAS / f"{schema_name}.json").read_text())
    definitions.clear()
    definitions.update(schema.get("$defs", {}))
    keys = list(document)
    yield from [] if keys == sorted(keys) else ["keys are not sorted"]
    yield from faults(document, schema, "")


def describing_schemas(document):
    """The names of the schemas that a document follows."""
    names = sorted(path.stem for path in SCHEMAS.glob("*.json"))
    return [name for name in names if not list(document_faults(name, document))]
