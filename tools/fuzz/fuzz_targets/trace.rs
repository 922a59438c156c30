//! Any bytes as a trace of requests.
#![no_main]

#[path = "../../../tests/readers/traces.rs"]
mod files;
mod limits;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| limits::within(|| files::check_trace(bytes)));
