//! Any bytes as the statistics of a run.
#![no_main]

mod limits;

use cacheplan_files::Limit as of_files;
use cacheplan_managers::book::Stats;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| limits::within(|| {
    if let Ok(stats) = of_files::MEASURED.parse_json::<Stats>(bytes) {
        let _ = (stats.to_string(), stats.prometheus());
    }
}));
