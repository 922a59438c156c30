//! Which devices hold what is asked for.

use std::collections::BTreeSet;
use std::path::Path;

use cacheplan_handlers::DType;
use cacheplan_planner::device::DeviceKind;
use cacheplan_planner::engines::Layout;
use cacheplan_planner::fit::{Answer, Engines, Fit, FitQuestion, Price, Prices};
use cacheplan_planner::{ByteSize, Config, DeviceInfo, EngineSpec, Override, Parallel, PlanError, PlanRequest};
use cacheplan_transforms::{Model, ReadOptions};
use rstest::rstest;

use super::common::{budget, published};

fn question(devices: &[&str], context: u64, sequences: u64) -> FitQuestion {
    FitQuestion {
        model: None,
        stated: Vec::new(),
        context,
        sequences,
        devices: devices.iter().map(|name| ((*name).to_owned(), name.parse::<DeviceInfo>().unwrap())).collect(),
        max_devices: 16,
        margin: 0,
        weights: None,
        prices: Prices::default(),
    }
}

pub(crate) fn answer(config: &str, devices: &[&str], context: u64, sequences: u64, prices: &str) -> Answer {
    let file = format!("{}/../tests/fixtures/configs/{config}.json", env!("CARGO_MANIFEST_DIR"));
    let model = Model::read(Path::new(&file), &ReadOptions::default()).unwrap();
    let question = FitQuestion {
        weights: model.info.weights.is_none().then_some(ByteSize(10 << 30).into()),
        prices: Prices::from_toml(prices).unwrap(),
        ..question(devices, context, sequences)
    };
    PlanRequest::of(model).fit(&question).unwrap()
}

/// What the next cheaper choice lacks, and the price of each sequence.
#[test]
fn best_says_what_is_next_cheaper() {
    let best = |prices: &str, sequences: u64| {
        let table = answer("Qwen__Qwen3-32B", &["h200", "h100"], 32_768, sequences, prices).table();
        let best = table.split_once("BEST\n").unwrap().1.to_owned();
        best.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let priced = best(PRICES, 20);
    let (_, next) = priced.split_once("next cheaper: ").unwrap();
    let (at, held) = next.split_once(": room for ").unwrap();
    let held: u64 = held.split_once(" of 20").unwrap().0.parse().unwrap();
    assert!(at.contains(" USD an hour") && (1..20).contains(&held), "{priced}");
    assert!(priced.contains("USD for each of the 20 sequences"), "{priced}");
    let least = answer("Qwen__Qwen3-8B", &["h200", "h100"], 4096, 1, PRICES).table();
    assert!(least.contains("1 x h100, the cheapest") && !least.contains("next cheaper"), "{least}");
    assert!(best("currency = ''\n[per_hour]\n", 20).contains("with less memory: "));
}

/// Without them the command would ask of another model.
#[test]
fn the_command_that_is_printed_states_what_was_stated() {
    let text = r#"{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 512, "num_attention_heads": 8}"#;
    let assumed = ["head_dim=128", "layer.1=none"];
    let options = ReadOptions { assume: assumed.map(|text| text.parse().unwrap()).into(), descriptions: Vec::new() };
    let model = Model::read_config("config.json", text, &options).unwrap();
    let question = FitQuestion {
        model: Some("a b.json".into()),
        stated: assumed.iter().flat_map(|fact| ["--assume".to_owned(), (*fact).to_owned()]).collect(),
        context: 4096,
        sequences: 1,
        devices: vec![("h100".into(), "h100".parse().unwrap())],
        max_devices: 1,
        margin: 0,
        weights: Some(ByteSize(100 << 20).into()),
        prices: Prices::default(),
    };
    let table = PlanRequest::of(model).fit(&question).unwrap().table();
    let words: Vec<&str> = table.split_whitespace().filter(|word| *word != "\\").collect();
    let stated = "--assume 'head_dim=128' --assume 'layer.1=none' --weights 104857600 --device-memory h100";
    let command = "cacheplan plan 'a b.json' ";
    assert!(words.join(" ").contains(&format!("{command}{stated}")), "{table}");
}

const PRICES: &str = "currency = 'USD'\n[per_hour]\nh200 = 4.0\nh100 = 2.5\n";

/// 20 sequences with tensor parallelism, 104 with data-parallel attention: the arithmetic stands with the ranks' tests, whose
/// 21 leave out a step in the widest layer.
#[test]
fn deepseek_v3_fits_eight_h200_with_data_parallel_attention() {
    let answer = answer("deepseek-ai__DeepSeek-V3", &["h200"], 32_768, 100, PRICES);
    let of = |parallel: Parallel| answer.fits.iter().find(|fit| fit.parallel == parallel && fit.is_plain()).unwrap();
    let attention = of(Parallel { dp: 8, ep: 8, ..Parallel::default() });
    assert_eq!((attention.sequences, attention.holds, attention.devices), (104, true, 8));
    assert_eq!(attention.per_hour, Some(32.0));
    // 32 an hour for 100 * 32,768 tokens.
    assert!((attention.per_million_tokens.unwrap() - 32.0 / 3.2768).abs() < 1e-12);
    let tensor = of(Parallel { tp: 8, ..Parallel::default() });
    assert_eq!((tensor.sequences, tensor.holds), (20, false));
    // Seven stages hold as many, each of nine layers at most.
    let best = answer.best().unwrap();
    assert_eq!((best.devices, best.parallel), (7, Parallel { pp: 7, ..Parallel::default() }));
    assert!(answer.table().lines().all(|line| line.chars().count() <= 80), "{}", answer.table());
    let told = answer.told(attention, "vllm".parse().unwrap()).unwrap();
    assert!(told.contains("--data-parallel-size 8 --enable-expert-parallel"), "{told}");
}

#[test]
fn the_cheapest_that_holds_comes_first_and_all_that_hold_before_all_that_do_not() {
    let answer = answer("Qwen__Qwen3-32B", &["h200", "h100", "l4"], 32_768, 20, PRICES);
    let holds: Vec<bool> = answer.fits.iter().map(|fit| fit.holds).collect();
    assert!(holds.is_sorted_by(|before, after| before >= after), "{holds:?}");
    let prices = answer.fits.iter().filter(|fit| fit.holds).map(|fit| fit.per_hour.unwrap_or(f64::INFINITY));
    assert!(prices.is_sorted());
    assert!(answer.fits.iter().all(|fit| fit.holds == (fit.sequences >= 20)));
    assert_eq!(answer.csv().lines().count(), 1 + answer.fits.len());
}

/// A device by any of its names has its price, and what is no device is refused.
#[rstest]
#[case("H200 = 4.0", Ok(Some(4.0)))]
#[case("\"h200\" = 0", Ok(Some(0.0)))]
#[case("h100 = 2.5", Ok(None))]
#[case("h200s = 4.0", Err("`per_hour.h200s`"))]
#[case("h200 = -1", Err("at least 0"))]
fn prices_are_those_of_devices(#[case] row: &str, #[case] expected: Result<Option<f64>, &str>) {
    let prices = Prices::from_toml(&format!("currency = 'USD'\n[per_hour]\n{row}\n"));
    match (prices, expected) {
        (Ok(_), Ok(price)) => {
            let answer =
                answer("Qwen__Qwen3-0.6B", &["h200"], 4_096, 1, &format!("currency = 'USD'\n[per_hour]\n{row}\n"));
            assert_eq!(answer.fits[0].per_hour, price);
        }
        (Err(why), Err(expected)) => assert!(why.contains(expected), "{why}"),
        other => panic!("{other:?}"),
    }
}

/// Without prices the least memory that holds is the best; of what holds nothing the most comes first, whatever it costs.
#[test]
fn the_smallest_that_holds_is_best_and_the_nearest_miss_comes_first() {
    let plain = answer("Qwen__Qwen3-0.6B", &["mi300x", "l4", "h100"], 4_096, 10, "currency = ''\n[per_hour]\n");
    assert_eq!(plain.best().map(|fit| (fit.device.as_str(), fit.devices)), Some(("l4", 1)));
    assert!(
        plain.table().contains("  cacheplan plan qwen3 --device-memory l4 --max-seq-len 4096\n"),
        "{}",
        plain.table()
    );
    let prices = "currency = 'USD'\n[per_hour]\nh100 = 2.5\nl4 = 0.1\n";
    let missed = answer("deepseek-ai__DeepSeek-V3", &["l4", "h100"], 32_768, 100_000, prices);
    assert!(missed.best().is_none() && missed.table().contains("nothing tried holds that"), "{}", missed.table());
    let sequences: Vec<u64> = missed.fits.iter().map(|fit| fit.sequences).collect();
    assert!(sequences[0] > 0 && sequences.is_sorted_by(|before, after| before >= after), "{sequences:?}");
}

/// One row for each device that holds anything, and a sentence for the rest; a Mac is never two, and nobody's vLLM serves there.
#[test]
fn the_table_has_a_row_for_each_device_and_names_those_that_hold_nothing() {
    let question = FitQuestion { max_devices: 2, ..question(&["l4", "h100", "m3-ultra-512gb"], 4_096, 1) };
    let answer = PlanRequest::of(published("Qwen__Qwen3-Next-80B-A3B-Thinking")).fit(&question).unwrap();
    let table = answer.table();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("yes") || line.starts_with("no")).collect();
    assert_eq!(rows.len(), 2, "{table}");
    assert_eq!(rows[1], "no   2 x l4, 2 x h100: room for no sequence, weights and a step take too much");
    assert!(answer.fits.iter().all(|fit| fit.device != "m3-ultra-512gb" || fit.devices == 1));
    let command = "cacheplan plan qwen3_next --device-memory m3-ultra-512gb --max-seq-len 4096\n";
    assert!(table.contains(command) && !table.contains("vllm serve"), "{table}");
}

/// On every known device, and on such devices whose memory processors share.
#[rstest]
#[case("Qwen__Qwen3-8B")]
#[case("Qwen__Qwen3-Next-80B-A3B-Thinking")]
fn one_device_holds_by_fit_what_it_holds_by_plan(#[case] model: &str) {
    let request = PlanRequest::of(published(model));
    let known = DeviceInfo::names().map(|name| name.parse::<DeviceInfo>().unwrap());
    let shared = |device: DeviceInfo| [DeviceInfo { kind: DeviceKind::Integrated, ..device.clone() }, device];
    let mut held = 0;
    for device in known.flat_map(shared) {
        let one =
            FitQuestion { max_devices: 1, devices: vec![("one".into(), device.clone())], ..question(&[], 4_096, 1) };
        let fits = request.fit(&one).unwrap().fits;
        let fit = fits.iter().find(|fit| fit.is_plain()).unwrap();
        let config = Config::resolve_on(Some(&device), Some(("max_seq_len = 4096", "b.toml")), &[], &[]).unwrap();
        let planned = match request.clone().with_config(config).with_devices(device.clone()).plan() {
            Ok(plan) => plan.capacity.sequences,
            Err(PlanError::DoesNotFit(_)) => 0,
            Err(other) => panic!("{device:?}: {other}"),
        };
        assert_eq!(fit.sequences, planned, "{device:?}");
        held += u64::from(planned > 0);
    }
    assert!(held > 5, "{held} devices hold any");
}

/// Each dtype by the engine's own word, and none that it has no word for.
#[rstest]
#[case("vllm", DType::Bf16, Some("--kv-cache-dtype bfloat16"))]
#[case("vllm", DType::F8E4m3, Some("--kv-cache-dtype fp8"))]
#[case("vllm", DType::F8E5m2, Some("--kv-cache-dtype fp8_e5m2"))]
#[case("vllm", DType::Q8_0, None)]
#[case("sglang", DType::F8E4m3, Some("--kv-cache-dtype fp8_e4m3"))]
#[case("sglang", DType::Q8_0, None)]
#[case("llama.cpp", DType::Q4_0, Some("--cache-type-k q4_0 --cache-type-v q4_0 --flash-attn on"))]
fn a_dtype_is_told_by_the_engines_word(#[case] engine: EngineSpec, #[case] dtype: DType, #[case] word: Option<&str>) {
    let parallel = Parallel::default();
    let layout = Layout {
        parallel,
        kv_dtype: Some(dtype),
        state_dtype: None,
        context: 4_096,
        sequences: 8,
        quantizes: false,
        experts: false,
    };
    let told = engine.flags_of(&layout).map(|flags| {
        let words = flags.into_iter().flat_map(|(name, value)| [Some(name.to_owned()), value]);
        words.flatten().collect::<Vec<_>>().join(" ")
    });
    assert_eq!(told.is_some(), word.is_some(), "{told:?}");
    assert!(told.unwrap_or_default().contains(word.unwrap_or_default()));
}

/// The planner's own pools are no engine's: no command that starts one stands below them.
#[test]
fn no_engine_is_told_what_only_the_planner_holds() {
    let table = answer("Qwen__Qwen3-Next-80B-A3B-Thinking", &["h200"], 4_096, 1, PRICES).table();
    assert!(table.contains("the planner's own pools") && table.contains("--as vllm"), "{table}");
    assert!(!table.contains("vllm serve") && !table.contains("--mamba-ssm-cache-dtype"), "{table}");
}

/// A price of what is held and one of what is written are no columns of one name.
#[test]
fn columns_of_prices_say_of_what() {
    let csv = answer("Qwen__Qwen3-0.6B", &["h200"], 4_096, 1, PRICES).csv();
    let head = csv.lines().next().unwrap();
    assert!(head.contains("per_hour_and_million_held_tokens") && head.contains("least_per_million_written_tokens"));
    assert!(csv.lines().all(|line| line.matches(',').count() == head.matches(',').count()));
}

/// A layout that an engine cannot be told is not made up.
#[rstest]
#[case("llama.cpp", Parallel { tp: 2, ..Parallel::default() })]
#[case("sglang", Parallel { tp: 2, dp: 4, ep: 4, ..Parallel::default() })]
#[case("tensorrt-llm", Parallel { dp: 2, ..Parallel::default() })]
fn what_an_engine_cannot_be_told_is_left_out(#[case] engine: EngineSpec, #[case] parallel: Parallel) {
    let layout = Layout {
        parallel,
        kv_dtype: None,
        state_dtype: None,
        context: 4_096,
        sequences: 8,
        quantizes: false,
        experts: false,
    };
    assert_eq!(engine.flags_of(&layout), None);
}

/// Fewer bits may be cheaper, and what they take the place of is said.
#[test]
fn a_best_in_fewer_bits_names_the_best_without() {
    let table = answer("Qwen__Qwen3-32B", &["h200", "h100"], 32_768, 100, PRICES).table();
    let best = table.split_once("BEST\n").unwrap().1;
    assert!(
        best.contains("--kv-dtype f8_e4m3") && best.contains("  with caches in the model's own dtypes: "),
        "{table}"
    );
}

/// What is longer than the model was made for is said whoever asks, and a name with blanks is one word of a command.
#[test]
fn an_answer_says_what_may_not_be_meant_and_prints_commands_for_a_shell() {
    let question = FitQuestion {
        model: Some("my models/llama".into()),
        stated: Vec::new(),
        context: 1 << 20,
        sequences: 1,
        devices: vec![("h200".to_owned(), "h200".parse().unwrap())],
        max_devices: 16,
        margin: 0,
        weights: None,
        prices: Prices::default(),
    };
    let answer = PlanRequest::of(published("meta-llama__Llama-2-7b-hf")).fit(&question).unwrap();
    let note = "max_seq_len 1048576 is longer than the 4096 tokens that the model was made for";
    assert_eq!(answer.notes, [note]);
    assert!(answer.table().contains("  cacheplan plan 'my models/llama' --device-memory"), "{}", answer.table());
}

/// The curve of the best layout passes through what the table says of it.
#[test]
fn the_picture_has_a_curve_for_each_device_and_a_cell_for_each_number_of_them() {
    let answer = answer("Qwen__Qwen3-32B", &["h200", "l4"], 32_768, 20, PRICES);
    assert_eq!(answer.curves.len(), 2);
    for curve in &answer.curves {
        let counts: Vec<u64> = curve.points.iter().map(|point| point.1).collect();
        assert!(counts.is_sorted_by(|shorter, longer| shorter >= longer), "{counts:?}");
    }
    let best = answer.fits.iter().find(|fit| fit.device == "h200" && fit.is_plain()).unwrap();
    let curve = answer.curves.iter().find(|curve| curve.name.contains("h200")).unwrap();
    assert!(curve.points.contains(&(32_768, best.sequences)));
    let (svg, html) = (answer.svg(), answer.html());
    let points: usize = answer.curves.iter().flat_map(|curve| &curve.points).filter(|point| point.1 > 0).count();
    // Of each number of each device the best is drawn.
    let cells: BTreeSet<(&str, u64)> =
        answer.fits.iter().filter(|fit| fit.is_plain()).map(|fit| (fit.device.as_str(), fit.devices)).collect();
    let cells = cells.len();
    // The document has each picture for wide screens and for narrow ones.
    for (file, times) in [(svg, 1), (html, 2)] {
        assert_eq!(file.matches("<circle").count(), times * points);
        assert_eq!(file.matches("class=\"part\"").count(), times * cells);
    }
}

/// States in 16 bits take half, so that no layout holds less.
#[test]
fn dtypes_of_states_are_swept_too() {
    let file =
        format!("{}/../tests/fixtures/configs/Qwen__Qwen3-Next-80B-A3B-Thinking.json", env!("CARGO_MANIFEST_DIR"));
    let model = Model::read(Path::new(&file), &ReadOptions::default()).unwrap();
    let request = PlanRequest::of(model);
    let question = FitQuestion { max_devices: 8, ..question(&["h200"], 32_768, 10) };
    let answer = request.fit(&question).unwrap();
    let of = |like: &Fit, state_dtype: Option<DType>| {
        let same = |fit: &&Fit| {
            (fit.parallel, fit.kv_dtype, &fit.engine) == (like.parallel, like.kv_dtype, &like.engine)
                && fit.state_dtype == state_dtype
        };
        answer.fits.iter().find(same).map(|fit| fit.sequences)
    };
    let plain: Vec<&Fit> = answer.fits.iter().filter(|fit| fit.is_plain()).collect();
    assert!(!plain.is_empty());
    for fit in &plain {
        let (own, halved) = (of(fit, None).unwrap(), of(fit, Some(DType::Bf16)).unwrap());
        assert!(own == fit.sequences && (halved > own || own == 0), "{own} and {halved} for {:?}", fit.parallel);
    }
    let table = answer.table();
    assert!(answer.csv().contains(",bf16,true,"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
}

/// Qwen2.5-7B has 28 query heads, of which 8 ranks have no equal share.
#[rstest]
#[case("Qwen__Qwen2.5-7B-Instruct", 4)]
#[case("Qwen__Qwen3-235B-A22B", 8)]
fn only_layouts_that_an_engine_runs_are_tried(#[case] config: &str, #[case] most: u32) {
    let answer = answer(config, &["b200"], 4_096, 1, "currency = ''\n[per_hour]\n");
    assert_eq!(answer.fits.iter().map(|fit| fit.parallel.tp).max(), Some(most));
    let experts = 128;
    assert!(answer.fits.iter().all(|fit| fit.parallel.ep == 1 || experts % fit.parallel.ep == 0));
    assert!(answer.fits.iter().all(|fit| fit.devices <= 16));
}

#[rstest]
#[case("[per_hour]\nh100 = 1.0", "currency")]
#[case("currency = 'USD'\n[per_hour]\nh100 = -1.0", "at least 0")]
#[case("currency = 'USD'\n[per_hour]\nh100 = 1.0\nH100 = 2.0", "prices of one device")]
#[case("currency = 'USD'\nper_minute = 1\n[per_hour]\n", "unknown field")]
fn prices_that_are_none_are_refused(#[case] text: &str, #[case] expected: &str) {
    let error = Prices::from_toml(text).unwrap_err();
    assert!(error.contains(expected), "{error}");
}

/// Qwen3-32B has 64 query heads and 64 layers: six devices are three stages of two ranks.
#[test]
fn every_number_of_devices_up_to_sixteen_is_tried_with_the_fewest_stages() {
    let answer = answer("Qwen__Qwen3-32B", &["l40s"], 32_768, 20, "currency = ''\n[per_hour]\n");
    let counts: BTreeSet<u64> = answer.fits.iter().map(|fit| fit.devices).collect();
    assert_eq!(counts, (1..=16).collect());
    let six: BTreeSet<(u32, u32)> =
        answer.fits.iter().filter(|fit| fit.devices == 6).map(|fit| (fit.parallel.tp, fit.parallel.pp)).collect();
    assert_eq!(six, BTreeSet::from([(2, 3), (2, 1), (1, 3), (1, 1)]));
    // The best is the fewest that hold, since all are alike but for their number.
    let fewest = answer.fits.iter().filter(|fit| fit.holds && fit.is_plain()).map(|fit| fit.devices).min();
    assert_eq!(answer.best().map(|fit| fit.devices), fewest);
}

/// Above sixteen they are powers of two, so that a thousand take no longer than they can.
#[test]
fn many_devices_are_tried_in_powers_of_two() {
    let question = FitQuestion { max_devices: 64, ..question(&["l4"], 4_096, 1) };
    let answer = PlanRequest::of(published("Qwen__Qwen3-0.6B")).fit(&question).unwrap();
    let counts: BTreeSet<u64> = answer.fits.iter().map(|fit| fit.devices).filter(|count| *count > 16).collect();
    assert_eq!(counts, BTreeSet::from([32, 64]));
}

/// Numbers are assumed, so that who rents asks for more than the least that holds.
#[test]
fn a_margin_is_held_before_a_layout_counts() {
    let holds = |margin: u32| {
        let question = FitQuestion { margin, ..question(&["rtx-4090"], 32_768, 2) };
        let answer = PlanRequest::of(published("Qwen__Qwen3-8B")).fit(&question).unwrap();
        let best = answer.best().unwrap();
        assert!(answer.fits.iter().all(|fit| fit.holds == (100 * fit.sequences >= 2 * (100 + u64::from(margin)))));
        (best.devices, best.sequences, answer.table())
    };
    let (least, with) = (holds(0), holds(50));
    assert!(least.1 >= 2 && with.1 >= 3 && with.0 >= least.0, "{least:?} {with:?}");
    assert!(with.2.contains("2 sequences of 32768 tokens and room for 50 % more"), "{}", with.2);
}

/// A sign in front of a price is what all are in; another currency beside it is refused, and so is what a shell leaves of `$2.50`.
#[test]
fn a_price_is_said_in_the_currency_that_it_is_stated_in() {
    let stated = |currency: &str, price: &str| {
        let mut prices = Prices { currency: currency.into(), ..Prices::default() };
        prices.state("h100", price.parse::<Price>()?)?;
        let question = FitQuestion { prices, ..question(&["h100"], 4_096, 2) };
        Ok::<_, String>(PlanRequest::of(published("Qwen__Qwen3-0.6B")).fit(&question).unwrap())
    };
    for (currency, price, said, kept) in [
        ("", "2.5", "  2.50 an hour, 1.2500 for each of the 2", ""),
        ("", "$2.50", "  $2.50 an hour, $1.2500 for each of the 2", "$"),
        ("USD", "2.5", "  2.50 USD an hour, 1.2500 USD for each", "USD"),
    ] {
        let answer = stated(currency, price).unwrap();
        assert!(answer.table().contains(said), "{}", answer.table());
        assert_eq!(answer.currency.as_deref(), Some(kept));
    }
    assert!(stated("USD", "€2").unwrap_err().contains("is in €, others are in USD"));
    for wrong in [".50", "$.50"] {
        assert!(stated("", wrong).unwrap_err().contains("write 0.50"), "{wrong}");
    }
}

/// Who states prices asks for the cheapest: what has none is named below, and is no row.
#[test]
fn devices_without_a_price_are_folded_where_one_with_a_price_holds() {
    let mut prices = Prices::default();
    prices.state("H100", 3.0).unwrap();
    prices.state("h100-80gb", 2.5).unwrap();
    assert!(prices.state("h1000", 1.0).is_err() && prices.state("l4", -1.0).unwrap_err().contains("at least 0"));
    assert_eq!(prices.per_hour.values().collect::<Vec<_>>(), [&2.5]);
    let question = FitQuestion { prices, ..question(&["h100", "h200", "l4"], 4_096, 1) };
    let table = PlanRequest::of(published("Qwen__Qwen3-0.6B")).fit(&question).unwrap().table();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("yes")).collect();
    assert!(rows.len() == 1 && rows[0].contains("1 x h100") && rows[0].contains("2.50"), "{table}");
    assert!(table.contains("without a price: 1 x l4 holds, 1 x h200 holds"), "{table}");
    assert!(table.contains("1 x h100, the cheapest that holds: ") && table.contains("\n  2.50 an hour\n"), "{table}");
}

/// The words are the field's; the name of the pool stays in the JSON.
#[rstest]
#[case("Qwen__Qwen3-Next-80B-A3B-Thinking", "kv_paged.0", "KV, 12 layers")]
#[case("deepseek-ai__DeepSeek-V3", "mla_paged.0", "latents, 61 layers")]
fn what_ends_it_is_said_in_words(#[case] config: &str, #[case] pool: &str, #[case] words: &str) {
    let answer = answer(config, &["h200"], 32_768, 10, "currency = ''\n[per_hour]\n");
    let best = answer.best().unwrap();
    assert_eq!((best.capped_by.as_str(), best.capped_by_words.as_str()), (pool, words));
    let said = format!("capped by memory, most of the caches being {words}");
    assert!(answer.table().contains(&said) && !answer.table().contains(pool), "{}", answer.table());
}

#[test]
fn the_longest_that_fits_is_held_and_one_token_more_is_not() {
    let asked = FitQuestion { max_devices: 1, ..question(&["rtx-4090"], 1, 2) };
    let request = PlanRequest::of(published("Qwen__Qwen3-8B"));
    let longest = request.longest_that_fits(&asked, Engines::NONE).unwrap();
    assert!(longest > 4_096 && longest < 40_960, "{longest}");
    let plain = |context: u64| {
        let answer = request.fit(&FitQuestion { context, ..asked.clone() }).unwrap();
        answer.fits.iter().any(|fit| fit.holds && fit.is_plain())
    };
    assert!(plain(longest) && !plain(longest + 1));
    let none = FitQuestion { sequences: 1_000_000, ..asked };
    assert_eq!(request.longest_that_fits(&none, Engines::NONE).unwrap(), 0);
}

/// A length that a bound of ours or the model's own ends is not said to be the longest that fits, and a plan finds what fit does.
#[rstest]
#[case("state-spaces__mamba-130m-hf", "h200", "the most that is planned, and fits; the model states no maximum")]
#[case("Qwen__Qwen3-8B", "h200", "the longest that the model was made for, and fits")]
#[case("Qwen__Qwen3-8B", "rtx-4090", "the longest that fits")]
fn what_ends_the_longest_sequence_is_said_alike_by_plan_and_fit(
    #[case] model: &str,
    #[case] device: &str,
    #[case] said: &str,
) {
    let request = PlanRequest::of(published(model));
    let asked = FitQuestion { max_devices: 1, ..question(&[device], 1, 2) };
    let fitted = request.longest_that_fits(&asked, Engines::NONE).unwrap();
    let alone = request
        .with_budget(budget("max_batch_size = 2\n[memory]\nfraction = 0.9\nof = 'total'"))
        .with_devices(asked.devices[0].1.clone());
    let planned = alone.longest_sequence().unwrap();
    assert_eq!([alone.longest_is(fitted), alone.longest_is(planned)], [said, said]);
    assert!(fitted == planned || said == "the longest that fits", "{fitted} {planned}");
}

/// A budget that says what is looked for would be overwritten in silence.
#[rstest]
#[case("memory.bytes", "'10GiB'")]
#[case("engine.cache_bytes", "'10GiB'")]
#[case("max_batch_size", "4")]
#[case("max_seq_len", "4096")]
fn what_is_looked_for_nobody_states(#[case] key: &str, #[case] value: &str) {
    let asked = question(&["h200"], 4096, 4);
    let model = published("Qwen__Qwen3-0.6B");
    let stated = Override::by_argument(key, value, "the caller");
    let config = Config::resolve(None, &[], &[stated]).unwrap();
    let budget = PlanRequest::of(model.clone()).with_budget(config.budget.clone());
    let refused = [budget.fit(&asked).map(drop), budget.longest_that_fits(&asked, Engines::NONE).map(drop)];
    for error in refused.map(Result::unwrap_err) {
        assert!(error.to_string().starts_with(&format!("`{key}` is what fit looks for")), "{error}");
    }
    let error = PlanRequest::of(model).with_config(config).fit(&asked).unwrap_err().to_string();
    assert!(error.starts_with(&format!("the caller: `{key}` is what fit looks for")), "{error}");
}
