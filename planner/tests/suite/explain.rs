//! Every number of a plan can be traced to a tensor, a key of the budget or a stated default.

use cacheplan_handlers::{DType, ResourceHandler};
use cacheplan_planner::DeviceInfo;
use cacheplan_planner::device::DeviceKind;
use cacheplan_planner::explain::{Derivation, ExplainError};
use cacheplan_transforms::{Resource, Resources};
use rstest::rstest;

use super::common::{Model, budget, kv, nemotron_3_nano};

const BUDGET: &str = "max_seq_len = 8192\n[memory]\nbytes = '24GiB'";

fn traced() -> Model {
    let model = nemotron_3_nano();
    let mut resources = Resources::default();
    for resource in &model.resources {
        let dims = resource.handler.shape().iter().zip(1..);
        let provenance =
            dims.map(|(dim, axis)| format!("{} = {} (tensor {}, axis {axis})", dim.name, dim.size, resource.node));
        resources.push(Resource { provenance: provenance.collect(), ..resource.clone() }).unwrap();
    }
    Model { resources, ..model }
}

fn explained(text: &str, subject: &str) -> Derivation {
    let (model, budget) = (traced(), budget(text));
    let request = model.request(&budget);
    request.explain(&request.plan().unwrap(), subject).unwrap()
}

#[rstest]
#[case::resource("ssm_0")]
#[case::state_pool("causal_conv.0")]
#[case::paged_pool("kv_paged.0")]
#[case::layer("5")]
#[case::layer_without_a_cache("1")]
#[case::capacity("capacity")]
#[case::ledger_line("activations")]
fn a_number_is_derived_down_to_a_tensor_or_a_key(#[case] subject: &str) {
    let text = explained(BUDGET, subject).to_string();
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    insta::assert_snapshot!(format!("explain_{}", subject.replace('.', "_")), text);
}

#[rstest]
#[case(
    "prompt = { fixed = 4096 }\noutput = { fixed = 64 }\nprefix_reuse = 0.5",
    "once for all sequences (`workload.prefix_reuse` = 0.5)"
)]
#[case(
    "prompt = { fixed = 4096 }\noutput = { fixed = 64 }\n[parallel]\ncp = 4",
    "(`parallel.cp` 4 x `parallel.dcp` 1)"
)]
fn what_makes_blocks_fewer_is_named(#[case] stated: &str, #[case] named: &str) {
    let text = explained(&format!("{BUDGET}\n[workload]\n{stated}"), "kv_paged.0").to_string();
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(joined.contains(named), "{text}");
}

#[test]
fn the_bytes_of_a_pool_are_the_product_of_the_numbers_below_it() {
    let model = nemotron_3_nano();
    let budget = budget(BUDGET);
    let request = model.request(&budget);
    let plan = request.plan().unwrap();
    for pool in &plan.pools {
        let derivation = request.explain(&plan, &pool.id).unwrap();
        let first = |derivation: &Derivation| -> u64 { derivation.claim.split(' ').next().unwrap().parse().unwrap() };
        let units = &derivation.from[0];
        assert_eq!(first(units), units.from.iter().map(first).sum::<u64>(), "{derivation}");
        assert_eq!(first(units) * pool.unit_bytes, pool.bytes);
    }
}

#[test]
fn one_sequence_more_needs_more_than_the_budget_has() {
    let derivation = explained(BUDGET, "capacity");
    let cap = &derivation.from.last().unwrap().claim;
    let words: Vec<&str> = cap.split(' ').collect();
    assert_eq!((words[0], words[2]), ("259", "need"), "{cap}");
    assert!(words[3].parse::<u64>().unwrap() > 24 << 30, "{cap}");
}

#[test]
fn a_fraction_names_the_device_and_what_is_taken_from_it() {
    let model = nemotron_3_nano();
    let budget = budget("[memory]\nfraction = 0.9\nof = 'total'\nweights = '3GiB'\nreserve = '1GiB'");
    let device = DeviceInfo { name: "gpu".into(), total_bytes: 24 << 30, free_bytes: 23 << 30, kind: DeviceKind::Cuda };
    let request = model.request(&budget).with_devices(device.clone());
    let text = request.explain(&request.plan().unwrap(), "capacity").unwrap().to_string();
    assert!(text.contains("0.9 of the device's 25769803776 bytes (24.00 GiB) (`memory.fraction` of total)"), "{text}");
    assert!(text.contains("less weights 3221225472 bytes (3.00 GiB)"), "{text}");
    assert!(text.contains("less reserve 1073741824 bytes (1.00 GiB)"), "{text}");
}

#[test]
fn windows_unpaged_tokens_and_readers_are_named() {
    let mut model = Model::new("mixed", 4).with("kv", 0, kv(8, 64).with_window(256).unwrap()).with(
        "extra",
        1,
        ResourceHandler::unpaged(&[3], DType::Int32).unwrap(),
    );
    model
        .resources
        .push(Resource {
            name: "kv_2".into(),
            layer: Some(2),
            handler: kv(8, 64),
            node: "layers.2.mixer".into(),
            provenance: Vec::new(),
            shared_by: vec![3],
        })
        .unwrap();
    let budget = budget("max_seq_len = 1024");
    let request = model.request(&budget);
    let plan = request.plan().unwrap();
    let text = |subject: &str| request.explain(&plan, subject).unwrap().to_string();
    assert!(text("kv_paged.0").contains("a window of 256 tokens stops the growth"));
    assert!(text("extra_1").contains("1024 tokens, held whole by each slot, of 12 bytes"));
    assert!(text("3").contains("reads kv_2, which another layer owns"));
    assert!(text("kv_2").contains("also read by layers 3"));
}

#[rstest]
#[case(
    "ssm_O",
    "`ssm_O` is no cache, pool, ledger line or layer of this plan; did you mean `ssm_0`? there are `capacity`, `ssm.0`, `causal_conv.0`, `kv_paged.0`, `activations`, `unused`, layers 0 to 51, 52 caches such as `ssm_0`"
)]
#[case(
    "frobnicator",
    "`frobnicator` is no cache, pool, ledger line or layer of this plan; there are `capacity`, `ssm.0`, `causal_conv.0`, `kv_paged.0`, `activations`, `unused`, layers 0 to 51, 52 caches such as `ssm_0`"
)]
#[case("host", "this plan has no host tier; `host.bytes` states one")]
#[case("52", "layer 52 does not exist; the model has layers 0 to 51")]
fn what_is_not_in_the_plan_is_an_error(#[case] subject: &str, #[case] expected: &str) {
    let (model, budget) = (nemotron_3_nano(), budget(BUDGET));
    let request = model.request(&budget);
    let error: ExplainError = request.explain(&request.plan().unwrap(), subject).unwrap_err();
    assert_eq!(error.to_string(), expected);
}
