//! Pipeline stages of hybrids: what fits, what a plan is told and what a command says is what the poorest of them holds.

mod common;

use cacheplan_planner::fit::{FitQuestion, Prices};
use cacheplan_planner::{EngineSpec, PlanRequest};
use cacheplan_serve::fit::Asks;
use cacheplan_serve::{Options, Starts};
use common::{as_asked, launch, models, on};
use rstest::rstest;

/// Hybrids whose stages have several numbers of attention layers, some of them none.
const HYBRIDS: [&str; 7] = [
    "Qwen__Qwen3-Next-80B-A3B-Thinking",
    "moonshotai__Kimi-Linear-48B-A3B-Instruct",
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "Zyphra__Zamba2-2.7B",
    "ibm-granite__granite-4.0-h-small",
    "google__gemma-2-9b",
    "LiquidAI__LFM2-1.2B",
];

#[rstest]
fn fit_and_plan_and_command_say_what_the_poorest_stage_holds(
    #[values("vllm", "sglang", "sglang@0.5.9", "tensorrt-llm")] engine: EngineSpec,
    #[values(2, 3, 4, 5)] pp: u32,
) {
    let device = "h100";
    let mut held = 0;
    for name in HYBRIDS {
        let question = FitQuestion {
            model: Some("org/model".into()),
            stated: Vec::new(),
            context: 8192,
            sequences: 3,
            devices: vec![(device.into(), device.parse().unwrap())],
            max_devices: pp,
            margin: 0,
            weights: None,
            prices: Prices::default(),
        };
        let model = PlanRequest::of(models(name).model).changed(|budget| budget.parallel.pp = pp);
        let asks = Asks::of_model(&model, Some("org/model"));
        // Not every engine has every model, and some do not divide it so.
        let Ok(Some(found)) = asks.fit(&[(&model, question)], &[engine.into()]) else { continue };
        let rows = found.fits.iter().filter(|row| row.engine.is_some() && row.kv_dtype.or(row.state_dtype).is_none());
        for row in rows.filter(|row| row.sequences > 0) {
            held += 1;
            let words = format!("{} org/model {}", engine.program(), as_asked(&found, row, engine));
            let options = Options { version: Some(engine.version_name()), ..on(&format!("{pp}x{device}")) };
            let said = cacheplan_serve::answer(&launch(&words), models(name), &options).unwrap();
            let sequences = said.sequences.unwrap_or_else(|| panic!("{name}: {words}: {:?}", said.reason));
            assert_ne!(said.starts, Starts::No, "{name}: {words}");
            assert!(sequences.low <= row.sequences && row.sequences <= sequences.high, "{name}: {sequences:?} {row:?}");
            let (_, request) = cacheplan_serve::request(&launch(&words), &models(name), &options).unwrap();
            for stage in 0..pp {
                let planned = request.clone().of_stage(stage).predict(engine).unwrap();
                assert_eq!(planned.sequences, row.sequences, "{name} stage {stage}: {words}");
                if engine.engine.name() == "sglang" {
                    let first = request.clone().of_stage(0).predict(engine).unwrap();
                    assert!(
                        planned.tokens.zip(first.tokens).is_none_or(|(own, first)| own == first),
                        "{name}: {words}"
                    );
                }
            }
        }
    }
    assert!(held >= 3, "{held} rows");
}
