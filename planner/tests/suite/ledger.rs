//! Every byte has a line, a source, and a consumer.

use cacheplan_handlers::{DType, Dim, Growth, Kind, ResourceHandler};
use cacheplan_planner::device::DeviceKind;
use cacheplan_planner::plan::{Certainty, LedgerItem, LedgerLine};
use cacheplan_planner::{ByteSize, DeviceInfo, EngineSpec, PlanError, PlanRequest, StepBytes};
use cacheplan_transforms::WeightBytes;
use rstest::rstest;

use super::common::{Model, budget, kv, published};

fn device(kind: DeviceKind) -> DeviceInfo {
    DeviceInfo { name: "device".into(), total_bytes: 80 << 30, free_bytes: 78 << 30, kind }
}

fn model() -> Model {
    let mut model = Model::new("m", 2).with("kv", 0, kv(8, 128)).with(
        "extra",
        1,
        ResourceHandler::unpaged(&[16], DType::F32).unwrap(),
    );
    model.info.weights = Some(WeightBytes::new(16 << 30, true));
    model
}

#[test]
fn the_lines_add_up_to_the_share_of_the_device() {
    let (model, device) = (model(), device(DeviceKind::Cuda));
    let budget = budget(
        "max_seq_len = 4096\n[memory]\nfraction = 0.9\nof = 'total'\nreserve = '1GiB'\ngraphs = '512MiB'\n\
         activations = '2GiB'",
    );
    let request = model.request(&budget).with_devices(device.clone());
    let plan = request.plan().unwrap();
    assert_eq!(request.check(&plan), Ok(()));
    assert_eq!(plan.ledger.iter().map(|line| line.bytes).sum::<u64>(), (80u64 << 30) / 10 * 9);
    let sources: Vec<(&str, Certainty)> = plan.ledger.iter().map(|line| (line.name.name(), line.source)).collect();
    assert_eq!(
        sources,
        [
            ("weights", Certainty::Exact),
            ("context", Certainty::Assumed),
            ("activations", Certainty::Assumed),
            ("graphs", Certainty::Assumed),
            ("reserve", Certainty::Exact),
            ("kv_paged.0", Certainty::Exact),
            ("local", Certainty::Exact),
            ("unused", Certainty::Exact),
        ]
    );
}

/// Who knows what a process has on a device states it in place of what logs say.
#[rstest]
#[case("0B", 0)]
#[case("300MiB", 300 << 20)]
fn a_stated_context_takes_the_place_of_an_assumed_one(#[case] stated: &str, #[case] bytes: u64) {
    let text = format!("max_seq_len = 4096\n[memory]\nfraction = 0.9\nof = 'total'\nsafe = true\ncontext = '{stated}'");
    let request = model().request(&budget(&text)).with_devices(device(DeviceKind::Cuda));
    let plan = request.plan().unwrap();
    assert_eq!(request.check(&plan), Ok(()));
    let line = plan.ledger.iter().find(|line| line.name == LedgerItem::Context).unwrap();
    assert_eq!((line.bytes, line.uncertain_bytes, line.source), (bytes, 0, Certainty::Assumed));
    assert!(request.explain(&plan, "context").unwrap().to_string().contains("--device-context"));
}

#[rstest]
#[case(DeviceKind::Cuda, 0)]
#[case(DeviceKind::Integrated, 8 << 30)]
#[case(DeviceKind::Cpu, 8 << 30)]
fn a_host_tier_takes_the_devices_memory_only_where_they_are_one(#[case] kind: DeviceKind, #[case] bytes: u64) {
    let (model, device) = (model(), device(kind));
    let budget = budget("max_seq_len = 4096\n[memory]\nfraction = 0.9\nof = 'total'\n[host]\nbytes = '8GiB'");
    let plan = model.request(&budget).with_devices(device.clone()).plan().unwrap();
    let line = plan.ledger.iter().find(|line| line.name == LedgerItem::HostTier);
    assert_eq!(line.map_or(0, |line| line.bytes), bytes);
}

#[rstest]
#[case("[host]\nbytes = '1GiB'", "no managed cache")]
#[case("[workload]\ncheckpoints_per_sequence = 1", "no managed state")]
fn a_budget_that_nothing_consumes_is_an_error(#[case] text: &str, #[case] expected: &str) {
    let kind = Kind::Custom("acme.scratch".into());
    let once = ResourceHandler::new(kind, Growth::Fixed, vec![Dim::whole("width", 16)], DType::F32, None).unwrap();
    let error = Model::new("m", 1).with("extra", 0, once).request(&budget(text)).plan().unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
    // What no pipeline stage has either.
    let once = || {
        ResourceHandler::new(
            Kind::Custom("acme.scratch".into()),
            Growth::Fixed,
            vec![Dim::whole("width", 16)],
            DType::F32,
            None,
        )
    };
    let model = Model::new("m", 2).with("a", 0, once().unwrap()).with("b", 1, once().unwrap());
    let error = model.request(&budget(&format!("{text}\n[parallel]\npp = 2"))).plan().unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
    // What lies in slots is kept and offloaded with them, though nobody manages it.
    let model = Model::new("m", 1).with("extra", 0, ResourceHandler::unpaged(&[16], DType::F32).unwrap());
    model.request(&budget(text)).plan().unwrap();
}

/// A layer of DeepSeek-V3 with its experts, and the projection that joins the hidden state and the next token's embedding.
#[rstest]
#[case("tp = 8", 0, 1)]
#[case("tp = 4\npp = 2", 1, 1)]
#[case("tp = 4\npp = 2", 0, 0)]
fn prediction_layers_have_weights_where_the_last_layer_is(
    #[case] parallel: &str,
    #[case] stage: u32,
    #[case] held: usize,
) {
    let model = published("deepseek-ai__DeepSeek-V3");
    let layer = model.prediction.weights.unwrap().bytes;
    let ask = |layers: u32| {
        let text = format!(
            "max_seq_len = 4096\n[memory]\nfraction = 0.9\nof = 'total'\n\
             [speculation]\ndraft_tokens = 1\nmtp_layers = {layers}\n[parallel]\n{parallel}"
        );
        let request = PlanRequest::of(model.clone()).with_budget(budget(&text)).of_stage(stage);
        request.with_devices("h200".parse::<DeviceInfo>().unwrap())
    };
    for layers in [1, 2] {
        let request = ask(layers);
        let plan = request.plan().unwrap();
        assert_eq!(request.check(&plan), Ok(()));
        let lines: Vec<&LedgerLine> = plan.ledger.iter().filter(|line| line.name == LedgerItem::DraftWeights).collect();
        assert_eq!(lines.len(), held);
        for line in lines {
            let (least, all) = (u64::from(layers) * layer / 8, u64::from(layers) * layer);
            assert!((least..all).contains(&line.bytes), "{} of {all}", line.bytes);
        }
    }
}

#[test]
fn memory_for_a_model_without_caches_is_an_error() {
    let model = Model::new("m", 1);
    let error = model.request(&budget("[memory]\nbytes = '1GiB'")).plan().unwrap_err().to_string();
    assert!(error.contains("the model has no cache"), "{error}");
}

#[test]
fn weights_that_take_more_than_all_are_what_does_not_fit() {
    let mut model = model();
    model.info.weights = Some(WeightBytes::new(100 << 30, true));
    let device = device(DeviceKind::Cuda);
    let budget = budget("max_seq_len = 4096\n[memory]\nfraction = 0.5\nof = 'total'\nactivations = '2GiB'");
    let error = model.request(&budget).with_devices(device.clone()).plan().unwrap_err();
    let text = error.to_string();
    // 40 GiB are allowed; weights, 0.6 GiB of context and 2 GiB of activations take 102.6.
    let expected =
        "but weights 100.00 GiB, context 614.40 MiB, activations 2.00 GiB take 102.60 GiB of the 40.00 GiB allowed";
    assert!(text.contains(expected) && text.contains("most of it `weights`"), "{text}");
    let PlanError::DoesNotFit(shortfall) = error else { panic!("{text}") };
    assert_eq!(shortfall.shortfall, (62 << 30) + gib("0.60") + shortfall.needed);
}

#[test]
fn what_does_not_fit_comes_with_changes_that_would() {
    // 32 layers of 4 KiB a token: 65,536 of them are 8 GiB.
    let budget = budget("max_seq_len = 65536\n[memory]\nbytes = '6400MiB'");
    let error = PlanRequest::of(published("meta-llama__Llama-3.1-8B-Instruct")).with_budget(budget).plan().unwrap_err();
    assert_eq!(error.exit_code(), 3);
    let text = error.to_string();
    // 6,400 MiB are 3,200 blocks of 2 MiB: the null block and 3,199 of 16 tokens.
    assert!(text.contains("try max_seq_len = 51184: 1 sequence, 6.25 GiB of caches"), "{text}");
    assert!(text.contains("try dtypes.kv = \"f8_e4m3\": 1 sequence"), "{text}");
    assert!(text.contains("try parallel.tp = 2: 1 sequence"), "{text}");
}

fn gib(number: &str) -> u64 {
    format!("{number}GiB").parse::<ByteSize>().unwrap().0
}

/// GiB that were logged, of so many layers.
type Share = (&'static str, u64);

/// On devices of several sizes: the figure in the middle of the engine's own logs and the largest, both of GiB over
/// layers. On a small device SGLang captures few batch sizes.
#[rstest]
#[case::nobody(None, 80, Some((("0.65", 32), ("1.40", 48))), "the middle of 7 logs of vllm; no engine is named")]
#[case::vllm(Some("vllm"), 80, Some((("0.65", 32), ("1.40", 48))), "the middle of 7 logs of vllm")]
#[case::few_alike(Some("vllm"), 24, Some((("1.30", 64), ("1.40", 48))), "the middle of 10 logs of vllm")]
#[case::sglang(Some("sglang"), 80, Some((("1.93", 43), ("6.19", 48))), "the middle of 3 logs of sglang")]
#[case::sglang_on_less(Some("sglang"), 24, Some((("0.11", 28), ("0.26", 32))), "the middle of 4 logs of sglang")]
#[case::sglang_on_more(Some("sglang"), 141, Some((("2.92", 36), ("6.19", 48))), "the middle of 5 logs of sglang")]
#[case::none_apart(
    Some("tensorrt-llm"),
    80,
    Some((("0.65", 32), ("1.40", 48))),
    "the middle of 7 logs of vllm; tensorrt-llm logs none apart"
)]
#[case::in_its_buffers(Some("llama.cpp"), 80, None, "")]
fn graphs_are_assumed_from_logs_of_the_engine_that_is_named(
    #[case] engine: Option<&str>,
    #[case] device_gib: u64,
    #[case] expected: Option<(Share, Share)>,
    #[case] source: &str,
) {
    let model = model();
    let total_bytes = device_gib << 30;
    let device = DeviceInfo { total_bytes, free_bytes: total_bytes, ..device(DeviceKind::Cuda) };
    let step = StepBytes { whole: 24_576, divided: 86_016, chunked: [0, 0], vocab: 128_256, index_key: 0 };
    let budget = budget("max_seq_len = 4096\n[memory]\nfraction = 0.9\nof = 'total'\nsafe = true");
    let unnamed = PlanRequest::of(model.caches().with_step(step)).with_budget(budget).with_devices(device);
    let named = engine.map(|engine| unnamed.clone().for_engine(engine.parse().unwrap()));
    let request = named.unwrap_or_else(|| unnamed.clone());
    let plan = request.plan().unwrap();
    assert_eq!(request.check(&plan), Ok(()));
    let line = plan.ledger.iter().find(|line| line.name == LedgerItem::Graphs);
    let of = |(logged, layers): Share| u64::from(model.info.layers) * (gib(logged) / layers);
    let expected = expected.map(|(middle, most)| (of(middle), of(most) - of(middle)));
    assert_eq!(line.map(|line| (line.bytes, line.uncertain_bytes)), expected);
    assert!(line.is_none_or(|line| line.note.ends_with(source)), "{line:?}");
    // A plan for another engine is another plan.
    assert_eq!(unnamed.fingerprint().unwrap() == request.fingerprint().unwrap(), engine.is_none());
}

/// What an engine predicts is of the bytes that its own graphs and context leave.
#[test]
fn an_engine_predicts_with_what_it_logged_itself() {
    let (model, device) = (model(), device(DeviceKind::Cuda));
    let step = StepBytes { whole: 24_576, divided: 86_016, chunked: [0, 0], vocab: 128_256, index_key: 0 };
    let budget = budget("max_seq_len = 4096\n[memory]\nfraction = 0.9\nof = 'total'");
    let request = PlanRequest::of(model.caches().with_step(step)).with_budget(budget).with_devices(device.clone());
    let available = |engine: &str| {
        let engine: EngineSpec = engine.parse().unwrap();
        request.compare(engine).unwrap().bytes
    };
    let (graphs, context) = (2 * (gib("1.93") / 43) - 2 * (gib("0.65") / 32), gib("0.60") - gib("0.38"));
    // vLLM has a logit of each of its 256 sequences in four bytes more.
    let logits = 256 * 128_256 * 4;
    assert_eq!(available("vllm") + context + logits - graphs, available("sglang"));
}

/// The step that a plan pays for is that of the sequences that it admits.
#[rstest]
#[case("max_seq_len = 64", false)]
#[case("max_seq_len = 64\nmax_batch_size = 100", true)]
fn logits_are_those_of_the_sequences_that_are_admitted(#[case] limits: &str, #[case] layers_take_more: bool) {
    let (model, device) = (model(), device(DeviceKind::Cuda));
    let step = StepBytes { whole: 24_576, divided: 86_016, chunked: [0, 0], vocab: 128_256, index_key: 0 };
    let budget = budget(&format!("{limits}\n[memory]\nfraction = 0.9\nof = 'total'"));
    let request = PlanRequest::of(model.caches().with_step(step)).with_budget(budget).with_devices(device.clone());
    let plan = request.plan().unwrap();
    assert_eq!(request.check(&plan), Ok(()));
    let line = plan.ledger.iter().find(|line| line.name == LedgerItem::Activations).unwrap();
    let in_layers = plan.limits.max_num_tokens * (24_576 + 86_016);
    let of_logits = plan.capacity.sequences * 1_282_560;
    assert_eq!(in_layers > of_logits, layers_take_more);
    assert_eq!(line.bytes, in_layers.max(of_logits));
}

/// Whose layers were read: the widest of them, captured graphs and the buffers of a group are assumed, and kept free once more
/// where that is asked for.
#[test]
fn what_assumed_lines_may_take_more_is_kept_free_on_request() {
    let (model, device) = (model(), device(DeviceKind::Cuda));
    let step = StepBytes { whole: 24_576, divided: 86_016, chunked: [0, 0], vocab: 128_256, index_key: 0 };
    let planned = |safe: bool| {
        let budget = budget(&format!(
            "max_seq_len = 262144\nmax_num_tokens = 4096\n[memory]\nfraction = 0.9\nof = 'total'\nsafe = {safe}\n\
             [parallel]\ntp = 2"
        ));
        let request = PlanRequest::of(model.caches().with_step(step)).with_budget(budget).with_devices(device.clone());
        let plan = request.plan().unwrap();
        assert_eq!(request.check(&plan), Ok(()));
        plan
    };
    let (plain, safe) = (planned(false), planned(true));
    let line = |name: LedgerItem| safe.ledger.iter().find(|line| line.name == name).unwrap();
    // 4096 tokens in the widest layer are more than the logits of the 120 sequences that are admitted.
    assert_eq!(line(LedgerItem::Activations).bytes, 4_096 * (24_576 + 86_016 / 2));
    assert_eq!(line(LedgerItem::Activations).uncertain_bytes, 2_048 * (24_576 + 86_016 / 2));
    assert_eq!(line(LedgerItem::Graphs).bytes, 2 * (gib("0.65") / 32));
    assert_eq!(line(LedgerItem::Nccl).bytes, 128 << 20);
    assert_eq!(line(LedgerItem::Weights).uncertain_bytes, 0);
    let more: u64 = plain.ledger.iter().map(|line| line.uncertain_bytes).sum();
    assert_eq!(line(LedgerItem::Margin).bytes, more);
    assert!(plain.ledger.iter().all(|line| line.name != LedgerItem::Margin));
    assert!(safe.capacity.sequences < plain.capacity.sequences);
}

/// Only what dimensions say is called that, and is uncertain.
#[rstest]
#[case(WeightBytes { unproven: true, ..WeightBytes::new(16 << 30, false) }, "stated by files that are not all there", 0)]
#[case(WeightBytes::new(16 << 30, false), "computed from the model's dimensions", (16 << 30) / 50)]
fn weights_say_who_states_them(#[case] weights: WeightBytes, #[case] note: &str, #[case] uncertain: u64) {
    let mut model = model();
    model.info.weights = Some(weights);
    let request = model
        .request(&budget("max_seq_len = 4096\n[memory]\nfraction = 0.9\nof = 'total'"))
        .with_devices(device(DeviceKind::Cuda));
    let plan = request.plan().unwrap();
    assert_eq!(request.check(&plan), Ok(()));
    let line = plan.ledger.iter().find(|line| line.name == LedgerItem::Weights).unwrap();
    assert_eq!((&*line.note, line.source, line.uncertain_bytes), (note, Certainty::Assumed, uncertain));
    assert!(request.explain(&plan, "weights").unwrap().to_string().contains(note));
}
