"""Which GPU holds a hybrid model at 32k tokens, what caps it, and with which flags? ``python rent_a_gpu.py CONFIG``."""

import sys

import cacheplan

CONTEXT = 32_768


def main(config: str) -> None:
    model = cacheplan.model(config)
    print(model)
    best: cacheplan.Plan | None = None
    for device in ("rtx-4090", "l40s", "a100-80gb", "h100", "h200", "b200"):
        try:
            plan = cacheplan.plan(model, device=device, max_seq_len=CONTEXT)
        except cacheplan.DoesNotFit as error:
            print(f"{device:10}  does not fit: {error.found}")
            continue
        capacity = plan.capacity
        print(f"{device:10}  {capacity.sequences:6} sequences, capped by {capacity.capped_by}")
        best = best or plan
    if best is None:
        return
    print()
    print(best)
    for knob in best.knobs():
        print(f"{knob.change} would admit {knob.sequences}")
    export = best.export("vllm", model="org/model")
    print()
    print(export.text)
    for lost in export.not_expressed:
        print("not expressed:", lost)


if __name__ == "__main__":
    main(sys.argv[1])
