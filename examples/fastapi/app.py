"""A module behind FastAPI.

    pip install collage-compiler fastapi uvicorn        # and what `collage doctor model.collage` names
    uvicorn app:app --workers 2

Each worker maps the same file, so that all of them share its weights.
"""

import os
from typing import Any

from fastapi import FastAPI, HTTPException

import collage

module = collage.load(os.environ.get("MODEL", "model.collage"))
app = FastAPI(title="Collage")


@app.get("/")
def about() -> dict[str, Any]:
    return {"inputs": module.inputs, "outputs": module.outputs}


@app.post("/predict")
def predict(inputs: dict[str, Any]) -> dict[str, Any]:
    """Inputs by name as nested lists, and outputs in the same way. Requests run in threads, one after another."""
    try:
        outputs = module.run(inputs)
    except collage.InputError as error:
        raise HTTPException(status_code=422, detail=str(error)) from error
    return {name: array.tolist() for name, array in outputs.items()}
