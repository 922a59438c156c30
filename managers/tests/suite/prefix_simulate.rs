//! Hit rates on fixed workloads, and the formats of traces.

use crate::traces::{CONVERSATION, SYNTHETIC, TOOL_AGENT, Traffic, conversations};
use cacheplan_managers::prefix::Metrics;
use cacheplan_managers::simulate::{Ceiling, Piece, Policy, Report, Scenario, SimulateError, TraceRequest, Workload};
use rstest::rstest;

fn hit_rate(requests: &[TraceRequest], policy: Policy, checkpoints: Option<usize>) -> f64 {
    let scenario = Scenario { policy, checkpoints, ..Scenario::default() };
    scenario.run(requests).unwrap().hit_rate
}

#[rstest]
fn coverage_never_hits_less_than_the_double_buffer_and_a_tenth_more_where_slots_are_short(
    #[values(Workload::Chat, Workload::Agents, Workload::Rag)] workload: Workload,
) {
    let requests = workload.requests();
    for checkpoints in [Some(64), Some(128), Some(256), None] {
        let ours = hit_rate(&requests, Policy::Coverage, checkpoints);
        let theirs = hit_rate(&requests, Policy::DoubleBuffered, checkpoints);
        let factor = if checkpoints == Some(64) { 1.1 } else { 1.0 };
        assert!(ours >= factor * theirs, "{checkpoints:?}: {ours} against {theirs}");
    }
}

#[rstest]
fn more_checkpoints_never_hit_less(#[values(Workload::Chat, Workload::Agents, Workload::Rag)] workload: Workload) {
    let requests = workload.requests();
    let mut fewer = 0.0;
    for checkpoints in [32, 64, 80, 96, 128, 192, 256, 512] {
        let more = hit_rate(&requests, Policy::Coverage, Some(checkpoints));
        assert!(more >= fewer, "{checkpoints}: {more} after {fewer}");
        fewer = more;
    }
}

/// A chain of 32k tokens with a state every 2,048, three times over, and then `last`.
fn hit_after_three_chains(policy: Policy, checkpoints: usize, last: Vec<Piece>) -> u64 {
    let scenario =
        Scenario { policy, checkpoints: Some(checkpoints), prefill_chunk: 2048, concurrency: 1, ..Scenario::default() };
    let request = |prompt| TraceRequest { prompt, output: Piece::Run { id: 99, len: 1 }, tenant: 0 };
    let mut requests: Vec<TraceRequest> = (0..3).map(|id| request(vec![Piece::Run { id, len: 32_768 }])).collect();
    requests.push(request(last));
    scenario.run(&requests).unwrap().metrics.hit_tokens
}

#[rstest]
fn a_fork_hits_although_there_are_more_positions_than_slots(#[values(40, 48)] checkpoints: usize) {
    let fork = || vec![Piece::Run { id: 0, len: 8192 }, Piece::Run { id: 7, len: 1000 }];
    assert_eq!(hit_after_three_chains(Policy::NoBuffer, 40, fork()), 0, "recency loses the shallow states first");
    assert_eq!(hit_after_three_chains(Policy::Coverage, checkpoints, fork()), 8192);
}

#[test]
fn a_chain_sent_again_hits_deep() {
    let chain = |id| vec![Piece::Run { id, len: 32_768 }];
    assert!(hit_after_three_chains(Policy::Coverage, 40, chain(0)) >= 16_384);
    assert!(hit_after_three_chains(Policy::Coverage, 40, chain(1)) >= 28_672);
}

#[test]
fn a_simulation_repeats_itself() {
    let requests = &Workload::Chat.requests()[..200];
    let run = || Scenario::default().run(requests).unwrap();
    assert_eq!(run(), run());
}

#[test]
fn a_small_kv_pool_is_never_exceeded_and_costs_hits() {
    let requests = &Workload::Rag.requests()[..300];
    let with = |kv_tokens| {
        let scenario = Scenario { kv_tokens, checkpoints: None, ..Scenario::default() };
        scenario.run(requests).unwrap()
    };
    let (small, large) = (with(Some(60_000)), with(None));
    assert!(small.metrics.tokens_evicted > 0);
    assert!(small.hit_rate < large.hit_rate);
}

#[test]
fn a_request_of_absurd_length_is_refused_before_it_is_written_out() {
    let trace = format!(r#"{{"prompt": [{{"id": 1, "len": {}}}], "output": {{"id": 2, "len": 1}}}}"#, usize::MAX);
    let refused = Scenario::default().run(&TraceRequest::read_trace(trace.as_bytes()).unwrap());
    assert!(matches!(refused, Err(SimulateError::TooLarge { request: 0, needed: usize::MAX, .. })));
}

#[test]
fn a_request_that_fits_no_pool_is_refused_by_name() {
    let requests = [TraceRequest {
        prompt: vec![Piece::Run { id: 1, len: 5000 }],
        output: Piece::Run { id: 2, len: 10 },
        tenant: 0,
    }];
    let scenario = Scenario { kv_tokens: Some(4096), ..Scenario::default() };
    let refused = scenario.run(&requests);
    assert!(matches!(refused, Err(SimulateError::TooLarge { request: 0, needed: 5010, available: 4096 })));
}

#[test]
fn a_mooncake_trace_shares_by_its_hash_ids() {
    let trace = r#"
        {"timestamp": 0, "input_length": 1400, "output_length": 20, "hash_ids": [1, 2, 3]}
        {"timestamp": 9, "input_length": 1500, "output_length": 20, "hash_ids": [1, 2, 4]}
        {"timestamp": 12, "input_length": 1500, "output_length": 20, "hash_ids": [1, 2, 5]}
    "#;
    let requests = TraceRequest::read_trace(trace.as_bytes()).unwrap();
    let lens: Vec<usize> = requests[0].prompt.iter().map(Piece::len).collect();
    assert_eq!(lens, [512, 512, 376]);
    let metrics: Metrics = Scenario::default().run(&requests).unwrap().metrics;
    assert_eq!(metrics.kv_hit_tokens, 2 * 1024);
    assert_eq!(metrics.hit_tokens, 1024, "the second request finds KV alone and leaves the branch checkpoint");
}

#[rstest]
#[case::no_prompt(r#"{"timestamp": 0, "input_length": 0, "output_length": 5, "hash_ids": []}"#, &[])]
#[case::no_answer(r#"{"timestamp": 0, "input_length": 3, "output_length": 0, "hash_ids": [7]}"#, &[3])]
#[case::whole_blocks(r#"{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [7, 8]}"#, &[512, 512])]
#[case::one_token_more(r#"{"timestamp": 0, "input_length": 1025, "output_length": 1, "hash_ids": [7, 8, 9]}"#, &[512, 512, 1])]
#[case::a_block_twice(r#"{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [7, 7]}"#, &[512, 512])]
#[case::fractions_of_milliseconds(r#"{"timestamp": 0.25, "input_length": 1, "output_length": 1, "hash_ids": [7]}"#, &[1])]
#[case::the_largest_id(
    r#"{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [18446744073709551615]}"#, &[1]
)]
#[case::other_order_and_further_fields(
    "  {\"hash_ids\": [7], \"type\": \"text\", \"turn\": 1, \"output_length\": 1, \"input_length\": 9, \"timestamp\": 4}\r", &[9]
)]
fn an_unusual_mooncake_line_is_read(#[case] line: &str, #[case] blocks: &[usize]) {
    let requests = TraceRequest::read_trace(line.as_bytes()).unwrap();
    let lens: Vec<usize> = requests[0].prompt.iter().map(Piece::len).collect();
    assert_eq!(lens, blocks);
    let metrics = Scenario::default().run(&[requests[0].clone(), requests[0].clone()]).unwrap().metrics;
    assert_eq!(metrics.prompt_tokens, 2 * blocks.iter().sum::<usize>() as u64);
}

#[test]
fn mooncake_requests_run_in_the_order_of_their_timestamps() {
    let line = |time: u32, len| {
        format!("{{\"timestamp\": {time}, \"input_length\": {len}, \"output_length\": 1, \"hash_ids\": [{time}]}}\n")
    };
    let trace = [line(9, 3), line(2, 1), line(9, 4), line(5, 2)].concat();
    let lens = TraceRequest::read_trace(trace.as_bytes())
        .unwrap()
        .iter()
        .map(|request| request.prompt[0].len())
        .collect::<Vec<_>>();
    assert_eq!(lens, [1, 2, 3, 4]);
}

/// At 64 checkpoints a tenth more than the double buffer, or 98 % of what unlimited checkpoints hit where that is less.
fn goal(theirs: f64, unlimited: f64) -> f64 {
    f64::min(1.1 * theirs, 0.98 * unlimited)
}

/// Never below the double buffer, and more with more checkpoints. Returns the token hit rates at 64 checkpoints and
/// without limit, and that of the double buffer at 64.
fn holds_against_the_double_buffer(requests: &[TraceRequest]) -> [f64; 3] {
    let mut fewer = 0.0;
    let mut at_64 = [0.0; 2];
    for checkpoints in [Some(64), Some(128), Some(256), None] {
        let [ours, theirs] =
            [Policy::Coverage, Policy::DoubleBuffered].map(|policy| hit_rate(requests, policy, checkpoints));
        assert!(ours >= theirs, "{checkpoints:?}: {ours} against {theirs}");
        assert!(ours >= fewer, "{checkpoints:?}: {ours} after {fewer}");
        if checkpoints == Some(64) {
            at_64 = [ours, theirs];
        }
        fewer = ours;
    }
    [at_64[0], fewer, at_64[1]]
}

#[rstest]
fn coverage_hits_a_tenth_more_than_the_double_buffer_on_traces_in_mooncakes_format(#[values(15, 60)] open: usize) {
    let requests = TraceRequest::read_trace(conversations(1200, open, 7).as_bytes()).unwrap();
    let [ours, unlimited, theirs] = holds_against_the_double_buffer(&requests);
    assert!(ours >= goal(theirs, unlimited), "{ours} against {theirs}");
}

/// Three conversations per checkpoint and more, each as likely to be next as any other: the gain is smaller.
#[rstest]
fn coverage_gains_less_where_conversations_are_many_times_the_checkpoints(#[values(400)] open: usize) {
    let requests = TraceRequest::read_trace(conversations(1200, open, 7).as_bytes()).unwrap();
    let [ours, _, theirs] = holds_against_the_double_buffer(&requests);
    assert!(ours >= 1.05 * theirs, "{ours} against {theirs}");
}

#[test]
fn no_policy_exceeds_the_ceiling_and_it_is_what_unlimited_checkpoints_hit_where_slots_suffice() {
    let requests = TraceRequest::read_trace(conversations(300, 30, 7).as_bytes()).unwrap();
    let ceiling = Ceiling::new(&requests, Scenario::default()).unwrap();
    let unlimited = hit_rate(&requests, Policy::Coverage, None);
    let mut fewer = 0.0;
    for slots in [4, 8, 16, 32] {
        let most = ceiling.hit_rate(slots);
        let ours = hit_rate(&requests, Policy::Coverage, Some(slots));
        assert!(fewer < most && ours < most && most < unlimited + 0.001, "{slots}: {ours}, {most}, {unlimited}");
        fewer = ours;
    }
    assert!(ceiling.hit_rate(4) < 0.9 * unlimited);
    assert!((ceiling.hit_rate(1000) - unlimited).abs() < 0.001);
}

/// Seeds that nothing was chosen by.
#[rstest]
fn coverage_hits_more_on_traffic_like_mooncakes(
    #[values(CONVERSATION, TOOL_AGENT, SYNTHETIC)] traffic: Traffic,
    #[values(1101)] seed: u64,
) {
    let requests = TraceRequest::read_trace(traffic.trace(1500, seed).as_bytes()).unwrap();
    let [ours, _, theirs] = holds_against_the_double_buffer(&requests);
    assert!(ours >= 1.07 * theirs, "{ours} against {theirs}");
}

#[rstest]
fn coverage_hits_more_on_workloads_of_other_seeds(
    #[values(Workload::Chat, Workload::Agents, Workload::Rag)] workload: Workload,
    #[values(101)] seed: u64,
) {
    let [ours, _, theirs] = holds_against_the_double_buffer(&workload.seeded(seed));
    assert!(ours >= 1.1 * theirs, "{ours} against {theirs}");
}

/// As published of Mooncake's traces: mean prompt, and the share of it that was seen before.
#[rstest]
#[case(CONVERSATION, 12_035, 0.40)]
#[case(TOOL_AGENT, 8_596, 0.59)]
#[case(SYNTHETIC, 15_325, 0.66)]
fn generated_traffic_resembles_mooncakes(#[case] traffic: Traffic, #[case] prompt: u64, #[case] seen: f64) {
    let runs = [1101, 1102].map(|seed| {
        let requests = TraceRequest::read_trace(traffic.trace(1500, seed).as_bytes()).unwrap();
        Scenario { checkpoints: None, ..Scenario::default() }.run(&requests).unwrap().metrics
    });
    let (tokens, hits) =
        runs.into_iter().fold((0, 0), |(tokens, hits), run| (tokens + run.prompt_tokens, hits + run.kv_hit_tokens));
    assert!((tokens / (2 * 1500)).abs_diff(prompt) < prompt / 10, "{}", tokens / (2 * 1500));
    assert!((hits as f64 / tokens as f64 - seen).abs() < 0.05, "{}", hits as f64 / tokens as f64);
}

#[test]
fn our_traces_read_back_as_they_were_written() {
    let requests = Workload::Agents.requests();
    let lines: Vec<String> = requests[..20].iter().map(|r| serde_json::to_string(r).unwrap()).collect();
    assert_eq!(TraceRequest::read_trace(lines.join("\n").as_bytes()).unwrap(), requests[..20]);
    let literal = r#"{"prompt": [{"tokens": [5, 6, 7]}], "output": {"id": 1, "len": 2}, "tenant": 3}"#;
    assert_eq!(TraceRequest::read_trace(literal.as_bytes()).unwrap()[0].prompt[0].len(), 3);
}

#[rstest]
#[case::not_json("{", 1)]
#[case::neither_format("\n{\"input\": 3}", 2)]
#[case::mooncake_without_a_length("{\"timestamp\": 1, \"output_length\": 2, \"hash_ids\": []}", 1)]
#[case::mooncake_with_a_negative_length(
    "\n\n{\"timestamp\": 1, \"input_length\": -1, \"output_length\": 2, \"hash_ids\": []}",
    3
)]
#[case::unknown_field("{\"prompt\": [], \"output\": {\"id\": 1, \"len\": 2}, \"tenat\": 3}", 1)]
fn a_line_that_is_no_request_is_named(#[case] trace: &str, #[case] expected: usize) {
    assert!(
        matches!(TraceRequest::read_trace(trace.as_bytes()), Err(SimulateError::Line { line, .. }) if line == expected)
    );
}

#[test]
fn a_mooncake_line_whose_blocks_do_not_hold_its_tokens_is_refused() {
    let trace = r#"{"timestamp": 0, "input_length": 1400, "output_length": 20, "hash_ids": [1, 2]}"#;
    let refused = TraceRequest::read_trace(trace.as_bytes());
    assert!(matches!(refused, Err(SimulateError::BlockCount { line: 1, blocks: 2, tokens: 1400 })));
}

#[test]
fn the_chart_has_a_line_and_a_label_per_report() {
    let requests = &Workload::Chat.requests()[..50];
    let reports: Vec<Report> =
        Policy::ALL.iter().map(|&policy| Scenario { policy, ..Scenario::default() }.run(requests).unwrap()).collect();
    let svg = Report::chart("chat <64>", &reports);
    let grid = svg.matches(r##"stroke="#ddd""##).count();
    // A line over the course, and one beside its name.
    assert_eq!(svg.matches("<polyline").count() - grid, 2 * 4);
    assert!(svg.contains("chat &lt;64&gt;") && svg.contains("double-buffered · 64 ·"));
}
