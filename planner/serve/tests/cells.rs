//! What is said of cells that a llama.cpp server takes: whose they are, what ends them, and what lies beside them.

mod common;

use cacheplan_planner::Override;
use cacheplan_serve::{Answer, Options, Starts, answer};
use common::{changed, launch, models, on};
use rstest::rstest;

const QWEN: &str = "Qwen__Qwen3-8B";

fn of(name: &str, flags: &str, stated: &[(&str, &str)]) -> Answer {
    let overrides = stated.iter().map(|(key, value)| Override::by_flag(*key, *value, *key)).collect();
    let options = Options { model_is_given: true, overrides, ..on("rtx-4090") };
    let words = format!("llama-server {}", flags.trim_end());
    answer(&launch(&words), models(name), &options).unwrap_or_else(|said| panic!("{words}: {said}"))
}

/// What is printed, with its lines joined.
fn joined(found: &Answer) -> String {
    found.text().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn text(flags: &str, stated: &[(&str, &str)]) -> String {
    joined(&of(QWEN, flags, stated))
}

/// Four who share their cells are no single one, and what nobody stated caps nothing.
#[rstest]
#[case("-np 4 -kvu -c 65536", "4 slots share 65536 tokens, at most 40960 each; capped by the cells that are stated")]
#[case("", "4 slots share 40960 tokens, at most 40960 each; capped by the cells that it takes where")]
#[case("-np 1 -c 131072", "1 sequence of 40960 tokens; capped by the 40960 tokens that the model was made for")]
#[case("-np 4 -c 16384", "4 sequences of 4096 tokens; capped by the cells that are stated")]
fn slots_and_their_cells_are_told_apart(#[case] flags: &str, #[case] expected: &str) {
    let said = text(&format!("-m q.gguf -ngl 99 {flags}"), &[("memory.weights", "5GB")]);
    assert!(said.contains(expected), "{said}");
}

/// A context that nobody states is that of each slot of its own, as far as `--fit` finds room for it, and no less than 4096; `-c 0` asks for
/// all of it. As b11549 logs them, of a model of 40960 tokens.
#[rstest]
#[case::each("-np 2", "n_ctx = 81920 ", "n_ctx_seq = 40960 ")]
#[case::chosen("", "n_ctx = 40960 ", "n_ctx_seq = 40960 ")]
#[case::shared("-np 2 -kvu", "n_ctx = 40960 ", "n_ctx_seq = 40960 ")]
#[case::as_they_are("-np 2 --fit off", "n_ctx = 40960 ", "n_ctx_seq = 20480 ")]
#[case::all("-np 2 -c 0", "n_ctx = 81920 ", "n_ctx_seq = 40960 ")]
#[case::all_without_fit("-np 2 -c 0 --fit off", "n_ctx = 40960 ", "n_ctx_seq = 20480 ")]
#[case::many("-np 64 -c 0", "n_ctx = 2621440 ", "n_ctx_seq = 40960 ")]
#[case::stated("-np 2 -c 1000", "n_ctx = 1024 ", "n_batch = 1000 ")]
#[case::few("-np 3 -c 300", "n_ctx_seq = 256 ", "n_batch = 300 llama_context: n_ubatch = 300 ")]
#[case::vectors("--embedding -c 8192", "n_ctx = 8192 ", "n_batch = 512 llama_context: n_ubatch = 512 ")]
#[case::vectors_of_small_passes(
    "--reranking -c 8192 -ub 256",
    "n_ctx = 8192 ",
    "n_batch = 256 llama_context: n_ubatch = 256 "
)]
fn a_context_and_its_steps_are_those_that_are_logged(#[case] flags: &str, #[case] cells: &str, #[case] of_slot: &str) {
    let said = text(&format!("-m q.gguf {flags}"), &[("memory.weights", "5GB")]);
    assert!(said.contains(cells) && said.contains(of_slot), "{said}");
}

/// To let it choose says nothing, so that it fits what it finds as where nobody says.
#[rstest]
#[case("-ngl auto")]
#[case("-ngl -1")]
fn layers_that_it_chooses_are_not_stated(#[case] layers: &str) {
    let of = |flags: &str| text(&format!("-m q.gguf -np 8 {flags}"), &[("memory.weights", "5GB")]);
    let words = |said: &str| said.split(" LOG ").nth(1).map(str::to_owned);
    assert_eq!(words(&of(layers)), words(&of("")));
    assert_eq!(of(layers).contains(": starts "), of("").contains(": starts "));
}

/// A context that is stated whole is not made smaller: what its device does not hold stays on the host.
#[test]
fn a_whole_context_is_not_fitted() {
    let found = of("meta-llama__Llama-3.1-8B-Instruct", "-m l.gguf -c 0", &[]);
    let said = joined(&found);
    assert!(said.contains("n_ctx = 131072 ") && said.contains("not with all of it on the devices"), "{said}");
}

#[rstest]
#[case("-ctk q8_0", "K cache type q8_0 with block size 32 does not divide n_embd_head_k=80")]
#[case("-ctv q4_0", "V cache type q4_0 with block size 32 does not divide n_embd_head_v=80")]
#[case("-ctk q8_0 -fa off", "heads of 80 are no whole blocks")]
fn heads_are_whole_blocks(#[case] flags: &str, #[case] expected: &str) {
    let model = || {
        changed(QWEN, |config| {
            config["head_dim"] = 80.into();
        })
    };
    let options = Options { model_is_given: true, ..on("rtx-4090") };
    let ask =
        |flags: &str| answer(&launch(&format!("llama-server -m m.gguf -np 1 -c 4096 {flags}")), model(), &options);
    let error = ask(flags).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
    ask("-ctk f16").unwrap();
}

#[test]
fn devices_of_other_hosts_are_refused() {
    let options = Options { model_is_given: true, ..on("rtx-4090") };
    let command = launch("llama-server -m q.gguf --rpc 10.0.0.2:50052");
    assert!(answer(&command, models(QWEN), &options).unwrap_err().to_string().contains("--rpc"));
}

#[test]
fn cells_that_were_fitted_are_capped_by_memory() {
    let said = text("-m q.gguf", &[("memory.weights", "20GB")]);
    assert!(said.contains("capped by the memory that --fit finds"), "{said}");
}

/// A file's type is in its name, and its size follows from that between two.
#[rstest]
#[case("meta-llama__Llama-3.1-8B-Instruct", "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", 4_920_000_000)]
#[case("meta-llama__Llama-3.1-8B-Instruct", "Meta-Llama-3.1-8B-Instruct-Q8_0.gguf", 8_540_000_000)]
#[case(QWEN, "Qwen3-8B-Q4_K_M.gguf", 5_030_000_000)]
#[case(QWEN, "x/qwen3-8b-q5_k_m.gguf", 5_850_000_000)]
fn a_files_type_tells_its_weights(#[case] name: &str, #[case] file: &str, #[case] size: u64) {
    let of_type = cacheplan_planner::GgufType::of_file(file).unwrap();
    let [least, assumed, most] = models(name).model.weights_in(of_type).unwrap();
    assert!((least..=most).contains(&size) && least < assumed && assumed < most, "{least} {assumed} {most}");
    assert!((assumed as f64 / size as f64 - 1.0).abs() < 0.05, "{assumed}");
    let found = of(name, &format!("-m {file} -ngl 99 -np 4 -c 65536"), &[]);
    assert_eq!((found.starts, found.cautions.len()), (Starts::Yes, 0), "{}", found.text());
    assert!(found.notes.iter().any(|note| note.contains("assumed from the name")), "{:?}", found.notes);
}

/// What lies beside the caches is named one by one, whether it starts or not, and what is stated is not asked for.
#[rstest]
#[case("-c 32768", Starts::Yes)]
#[case("-c 262144", Starts::No)]
fn what_takes_the_memory_is_named(#[case] cells: &str, #[case] expected: Starts) {
    let stated = [("memory.weights", "'4.68GiB'"), ("memory.reserve", "'1GiB'")];
    let found = of("meta-llama__Llama-3.1-8B-Instruct", &format!("-m l.gguf -ngl 99 -np 4 {cells}"), &stated);
    assert_eq!(found.starts, expected, "{}", found.text());
    let said = found.reason.clone().unwrap_or_else(|| found.notes.join(" "));
    for part in
        ["4.68 GiB of weights", "1.00 GiB of what is reserved", "of steps and the device's context", "of caches"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!joined(&found).contains("what a screen takes"), "{}", found.text());
    assert!(text("-m l.gguf -c 4096", &stated[..1]).contains("with --reserve what a screen takes"));
}

/// Cells that no slot is given are as well not taken.
#[test]
fn fewer_cells_that_hold_as_much_are_offered() {
    let stated = [("memory.weights", "'4.68GiB'")];
    let found = of(QWEN, "-m q.gguf -ngl 99 -np 1 -c 131072 -ctk q8_0 -ctv q8_0", &stated);
    let change = &found.changes[0];
    assert!(change.command.ends_with(&["--ctx-size".to_owned(), "40960".to_owned()]), "{change:?}");
    assert!(found.text().contains("--ctx-size 40960, not 131072: as much in "), "{}", found.text());
    assert!(of(QWEN, "-m q.gguf -ngl 99 -np 1 -c 40960", &stated).changes.is_empty());
}

/// Of fewer cells each slot has fewer, which is said where it changes.
#[test]
fn a_change_says_how_long_its_sequences_are() {
    let found =
        of("meta-llama__Llama-3.1-8B-Instruct", "-m l.gguf -ngl 99 -np 4 -c 131072", &[("memory.weights", "16GB")]);
    assert_eq!(found.starts, Starts::No);
    let each = found.changes[0].command.last().unwrap().parse::<u64>().unwrap() / 4;
    assert!(joined(&found).contains(&format!("4 sequences of {each} tokens")), "{}", found.text());
}

/// Weights that nobody knows decide whether it starts, and so do devices that nobody names.
#[rstest]
#[case::unknown("google__gemma-3-1b-it", "-m g.gguf -ngl 99 -np 1 -c 32768", &[], Starts::Maybe, "size of its weights is not known; state it with --weights")]
#[case::fitted("google__gemma-3-1b-it", "-m g.gguf", &[], Starts::Maybe, "state it with --weights")]
#[case::stated("google__gemma-3-1b-it", "-m g.gguf -ngl 99 -np 1 -c 32768", &[("memory.weights", "2GB")], Starts::Yes, ": starts ")]
#[case::assumed("meta-llama__Llama-3.1-8B-Instruct", "-m l-Q4_K_M.gguf -ngl 99 -np 1 -c 131072", &[("memory.reserve", "'1.5GiB'")], Starts::Maybe, "from the file's name; state it with --weights REASON at worst: cudaMalloc failed")]
fn what_may_start_says_what_would_tell(
    #[case] name: &str,
    #[case] flags: &str,
    #[case] stated: &[(&str, &str)],
    #[case] starts: Starts,
    #[case] said: &str,
) {
    let found = of(name, flags, stated);
    assert_eq!(found.starts, starts, "{}", found.text());
    assert!(joined(&found).contains(said), "{}", found.text());
}

#[rstest]
#[case("-c 16384", true)]
#[case("-c 16384 -ngl 0", false)]
fn devices_that_nobody_names_are_asked_for(#[case] flags: &str, #[case] asks: bool) {
    let words = format!("llama-server -m q.gguf {flags}");
    let options = Options { model_is_given: true, ..Options::default() };
    let found = answer(&launch(&words), models(QWEN), &options).unwrap();
    assert_eq!(found.starts, Starts::Yes);
    assert_eq!(joined(&found).contains("--device says which these are"), asks, "{}", found.text());
}

/// Where caches are what is too much, 8 bits keep what was asked for.
#[rstest]
#[case::of_caches("-m q.gguf -ngl 99 -np 4 -c 65536", true)]
#[case::in_eight_bits_already("-m q.gguf -ngl 99 -np 4 -c 262144 -ctk q8_0 -ctv q8_0", false)]
#[case::without_flash_attention("-m q.gguf -ngl 99 -np 4 -c 65536 -fa off", false)]
fn caches_of_8_bits_are_offered_where_caches_are_too_much(#[case] flags: &str, #[case] offered: bool) {
    let found = of(QWEN, flags, &[("memory.reserve", "'1.5GiB'")]);
    assert_ne!(found.starts, Starts::Yes, "{}", found.text());
    let narrow =
        found.changes.iter().find(|change| change.command.ends_with(&["--cache-type-v", "q8_0"].map(str::to_owned)));
    assert_eq!(narrow.is_some(), offered, "{}", found.text());
    assert!(narrow.is_none_or(|change| change.starts == Starts::Yes));
}

const OSS: &str = "openai__gpt-oss-120b";

/// GiB of weights on the devices.
fn on_devices(name: &str, device: &str, flags: &str) -> f64 {
    let words = format!("llama-server -m m.gguf -c 8192 -ngl 99 {flags}");
    let options = Options { model_is_given: true, ..on(device) };
    let found = answer(&launch(words.trim_end()), models(name), &options).unwrap();
    let said = found.notes.iter().find_map(|note| note.split_once(" on the devices: ")).unwrap().1;
    let (size, unit) = said.split_once(" of weights").unwrap().0.split_once(' ').unwrap();
    size.parse::<f64>().unwrap() / if unit == "MiB" { 1024.0 } else { 1.0 }
}

/// The same weights lie on the host whatever says so, and the rest on the devices.
#[rstest]
#[case::all("--cpu-moe", 36)]
#[case::each("--n-cpu-moe 36", 36)]
#[case::more_than_there_are("--n-cpu-moe 99", 36)]
#[case::pattern(r"-ot .ffn_.*_exps.=CPU", 36)]
#[case::word("-ot exps=CPU", 36)]
#[case::some("--n-cpu-moe 20", 20)]
#[case::some_by_pattern(r"-ot blk\.([0-9]|1[0-9])\.ffn_(up|down|gate)_exps=CPU", 20)]
#[case::the_first_decides("-ot exps=CPU,exps=CUDA0", 36)]
#[case::both("--cpu-moe --n-cpu-moe 3", 36)]
#[case::where_they_lie("-ot exps=CUDA0", 0)]
#[case::none("--n-cpu-moe 0", 0)]
#[case::no_dense_ones("--n-cpu-ffn 36", 0)]
fn weights_on_the_host_take_nothing_of_devices(#[case] flags: &str, #[case] layers: u32) {
    // 128 experts of three matrices of 2880 by 2880, in 4.25 bits.
    let of_layer = 128.0 * 3.0 * 2880.0 * 2880.0 * 4.25 / 8.0 / f64::from(1 << 30);
    let (all, left) = (on_devices(OSS, "h100", ""), on_devices(OSS, "h100", flags));
    assert!((all - left - f64::from(layers) * of_layer).abs() < 0.5, "{all} {left}");
}

/// Parts of a block, dense blocks, and other devices.
#[rstest]
#[case(OSS, "h100", "-ot ffn_up_exps=CPU", 1.0 / 3.0, "--cpu-moe")]
#[case(OSS, "h100", "-ot ffn_(up|down)_exps=CPU", 2.0 / 3.0, "--cpu-moe")]
#[case(OSS, "2xh100", "-ot exps=CUDA1", 0.0, "--cpu-moe")]
#[case("meta-llama__Llama-3.1-8B-Instruct", "h100", "--n-cpu-ffn 16", 0.5, "--n-cpu-ffn 32")]
#[case("meta-llama__Llama-3.1-8B-Instruct", "h100", "--cpu-moe", 0.0, "--n-cpu-ffn 32")]
#[case("Qwen__Qwen3-32B", "2xh100", "-ot blk\\..*\\.ffn_.*=CPU", 1.0, "--n-cpu-ffn 64")]
fn a_part_of_what_moves_is_a_part_of_its_bytes(
    #[case] name: &str,
    #[case] device: &str,
    #[case] flags: &str,
    #[case] part: f64,
    #[case] of: &str,
) {
    let moved = |flags: &str| on_devices(name, device, "") - on_devices(name, device, flags);
    assert!((moved(flags) - part * moved(of)).abs() < 0.05, "{} {}", moved(flags), moved(of));
}

/// What lies on the host decides whether the rest fits, which fails where it does not.
#[rstest]
#[case("--cpu-moe", Starts::Yes)]
#[case("--n-cpu-moe 4", Starts::No)]
#[case("-ot attn_k=CPU", Starts::Maybe)]
#[case("-ot .*=CPU", Starts::Maybe)]
#[case("-ot no_such_tensor=CPU", Starts::Maybe)]
#[case("-ot (=CPU", Starts::Maybe)]
#[case("--cpu-moe -ot exps=CUDA0", Starts::Maybe)]
fn what_is_not_counted_is_not_judged(#[case] flags: &str, #[case] starts: Starts) {
    let found = of(OSS, &format!("-m m.gguf -c 8192 -ngl 99 {flags}"), &[]);
    assert_eq!(found.starts, starts, "{}", found.text());
    assert_eq!(found.cautions.len(), usize::from(starts == Starts::Maybe), "{}", found.text());
}

#[rstest]
#[case("-ot exps", 2)]
#[case("-ot exps=RPC0", 4)]
fn places_that_are_not_known_are_refused(#[case] flags: &str, #[case] code: u8) {
    let words = format!("llama-server -m m.gguf -c 8192 {flags}");
    let error = answer(&launch(&words), models(OSS), &on("h100")).unwrap_err();
    assert_eq!(error.exit_code(), code, "{error}");
}

/// What a Mac gives its GPU of its memory is known between two; a stated size is what it gives.
#[test]
fn a_macs_gpu_has_a_part_of_its_memory() {
    // Caches of so many GiB, of 128 KiB a cell, beside 15 GiB of weights.
    let ask = |device: &str, gib: u64| {
        let options = Options { model_is_given: true, ..on(device) };
        let words = format!("llama-server -m l.gguf -np 1 -ngl 99 --fit off -c {}", gib << 13);
        answer(&launch(&words), models("meta-llama__Llama-3.1-8B-Instruct"), &options).unwrap().starts
    };
    let mac = "m4-max-128gb";
    assert_eq!([60, 80, 100].map(|gib| ask(mac, gib)), [Starts::Yes, Starts::Maybe, Starts::No]);
    assert_eq!([ask("100GiB", 80), ask("100GiB", 90)], [Starts::Yes, Starts::No]);
}
