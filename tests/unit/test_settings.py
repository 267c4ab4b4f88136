"""The client's one variable: read whole, or refused with a sentence that names the field."""

import json

import pytest

from kvpool_client.settings import VARIABLE, Settings, parse

GOOD = {"version": 1, "socket": "/run/kvpool/engine.sock", "hostPoolBytes": 1 << 30}


def test_a_whole_document_is_read_and_unknown_fields_are_ignored() -> None:
    assert parse(json.dumps(GOOD)) == Settings("/run/kvpool/engine.sock", 1 << 30)
    full = {**GOOD, "blockTokens": 64, "allowUntested": True, "decodeOutput": True, "later": 1}
    wanted = Settings("/run/kvpool/engine.sock", 1 << 30, 64, True, decode_output=True)
    assert parse(json.dumps(full)) == wanted


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"text"', "{}"])
def test_a_text_that_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=f"^{VARIABLE} is no JSON object with a version; let `kvpool inject` write it$"
    ):
        parse(text)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": 2}, "has version 2, this client reads 1; inject the pod anew"),
        ({"socket": ""}, ": socket is missing; give the path of the engine port"),
        ({"socket": 5}, ": socket is missing; give the path of the engine port"),
        ({"hostPoolBytes": 0}, ": hostPoolBytes is 0; give a positive whole number"),
        ({"hostPoolBytes": "1Gi"}, ": hostPoolBytes is '1Gi'; give a positive whole number"),
        ({"hostPoolBytes": True}, ": hostPoolBytes is True; give a positive whole number"),
        ({"blockTokens": -1}, ": blockTokens is -1; give a positive whole number"),
        ({"blockTokens": 1.5}, ": blockTokens is 1.5; give a positive whole number"),
        ({"allowUntested": "yes"}, ": allowUntested is 'yes'; give true or false"),
        ({"decodeOutput": 1}, ": decodeOutput is 1; give true or false"),
    ],
)
def test_each_wrong_field_has_its_sentence(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse(json.dumps({**GOOD, **change}))
    assert str(raised.value).removeprefix(VARIABLE).lstrip() == sentence.lstrip()
