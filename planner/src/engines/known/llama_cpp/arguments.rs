//! What `llama-server` is told so that it allocates what is predicted.

use crate::budget::Budget;
use crate::engines::prediction::EnginePrediction;

/// Steps of prompts that it takes where nobody says.
pub const DEFAULT_BATCH: u64 = 2048;

pub(super) fn of(predicted: &EnginePrediction, budget: &Budget) -> Vec<String> {
    let (options, mut arguments) = (&budget.engine, Vec::new());
    let mut say = |flag: &str, value: Option<String>| {
        if let Some(value) = value {
            arguments.extend([flag.to_owned(), value]);
        }
    };
    let stated = |number: Option<u64>| number.map(|number| number.to_string());
    say("-c", stated(predicted.tokens));
    say("-np", stated(Some(predicted.sequences)));
    // A pass is no longer than a step.
    say("-b", stated(options.ubatch.map(|ubatch| ubatch.max(DEFAULT_BATCH))));
    say("-ub", stated(options.ubatch));
    let dtype = budget.dtypes.kv;
    say("-ctk", options.cache_type_k.or(dtype).map(|dtype| dtype.to_string()));
    say("-ctv", options.cache_type_v.or(dtype).map(|dtype| dtype.to_string()));
    if options.context.is_some() && predicted.sequences > 1 {
        arguments.push("-kvu".to_owned());
    }
    if options.swa_full == Some(true) {
        arguments.push("--swa-full".to_owned());
    }
    // All that is wanted is what it says of its caches.
    let only_start = ["-lv", "4", "--no-warmup", "--host", "127.0.0.1", "--port", "0"];
    arguments.extend(only_start.map(str::to_owned));
    arguments
}
