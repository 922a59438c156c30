//! What must hold of any trace, whoever wrote it. The fuzz target checks the same.

use cacheplan_managers::simulate::TraceRequest;

/// Reads a trace with any content. Returns whether it is one.
#[allow(dead_code, reason = "the fuzz target includes it, and these tests read files")]
pub(crate) fn check_trace(bytes: &[u8]) -> bool {
    let requests = TraceRequest::read_trace(bytes);
    requests.iter().for_each(|requests| comes_back_in_our_format(requests));
    requests.is_ok()
}

pub(crate) fn comes_back_in_our_format(requests: &[TraceRequest]) {
    let lines: Vec<String> = requests.iter().map(|request| serde_json::to_string(request).unwrap()).collect();
    assert_eq!(TraceRequest::read_trace(lines.join("\n").as_bytes()).unwrap(), requests);
}
