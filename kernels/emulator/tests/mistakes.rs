//! Kernels with one mistake each, and the line at which it must be found.

mod common;

use cacheplan_emulator::{Fault, Options};
use common::{file, module, read, run};
use rstest::rstest;

/// The line of `MISTAKE` in a kernel of the source, counted from 1.
fn line_of_mistake(kernel: &str) -> Option<usize> {
    let source = read("mistakes.cu");
    let mut lines = (1..).zip(source.lines()).skip_while(|(_, line)| !line.contains(&format!("KERNEL({kernel})")));
    lines.find(|(_, line)| line.contains("MISTAKE") || *line == "}").filter(|(_, line)| *line != "}").map(|(at, _)| at)
}

#[rstest]
#[case("out_of_bounds", Fault::OutOfBounds, 1)]
#[case("misaligned", Fault::Misaligned, 256)]
#[case("writes_input", Fault::ReadOnly, 256)]
#[case("uninitialised", Fault::Uninitialised, 156)]
#[case("lanes_race", Fault::Race, 256)]
#[case("warps_race", Fault::Race, 128)]
#[case("overwrites_before_all_have_read", Fault::Race, 128)]
#[case("blocks_race", Fault::Race, 1)]
#[case("adds_without_atomics", Fault::Race, 256)]
#[case("divergent_barrier", Fault::BarrierDivergence, 8)]
#[case("divergent_shuffle", Fault::Deadlock, 8)]
#[case("copy_before_its_wait", Fault::InFlight, 256)]
#[case("copy_of_another_lane_after_its_wait", Fault::Race, 256)]
fn a_mistake_is_reported_at_its_line(#[case] kernel: &str, #[case] fault: Fault, #[case] count: u64) {
    let line = line_of_mistake(kernel).unwrap();
    for order in [0, 1, 2] {
        let blocks = if kernel.contains("block") || kernel == "out_of_bounds" { 2 } else { 1 };
        let out_len = if kernel == "out_of_bounds" { 256 } else { 512 };
        let options = Options { order, ..Options::default() };
        let (_, run) = run(&module("mistakes"), kernel, &[1.0; 256], out_len, blocks, &options);
        let mut found = run.reports.iter().filter(|report| report.fault == fault).peekable();
        assert!(found.peek().is_some(), "order {order}: {:?}", run.reports);
        if order == 0 {
            // In another order it is the other one of two accesses that comes too late.
            let here = found.find(|report| report.source.contains(&format!("mistakes.cu:{line}")));
            assert_eq!(here.map(|report| report.count), Some(count), "line {line}: {:?}", run.reports);
        }
    }
}

#[rstest]
#[case("lanes_meet")]
#[case("warps_meet")]
#[case("blocks_add")]
#[case("copies_in_two_stages")]
#[case("conflicts_of_banks")]
fn right_kernels_are_left_in_peace(
    #[case] kernel: &str,
    #[values(0, 7)] order: u64,
    #[values(false, true)] early_copies: bool,
) {
    assert_eq!(line_of_mistake(kernel), None);
    let options = Options { order, early_copies, ..Options::default() };
    let (_, run) = run(&module("mistakes"), kernel, &[1.0; 256], 256, 2 - u32::from(kernel != "blocks_add"), &options);
    assert!(run.reports.is_empty(), "{}", run.reports[0]);
}

/// Removing any barrier from a right kernel makes it a wrong one.
#[rstest]
#[case("lanes_meet", 2)]
#[case("warps_meet", 1)]
#[case("copies_in_two_stages", 4)]
fn each_synchronisation_is_missed(#[case] kernel: &str, #[case] count: usize) {
    let module = module("mistakes");
    let synchronisations: Vec<_> = module.kernel(kernel).unwrap().synchronisations().collect();
    assert_eq!(synchronisations.len(), count);
    for (at, text) in synchronisations {
        let mut mutant = module.clone();
        mutant.kernels = vec![module.kernel(kernel).unwrap().without(at)];
        let (_, run) = run(&mutant, kernel, &[1.0; 256], 256, 1, &Options::default());
        assert!(!run.reports.is_empty(), "without {text}");
    }
}

#[test]
fn passes_over_banks_are_counted() {
    let (_, run) = run(&module("mistakes"), "conflicts_of_banks", &[1.0; 256], 256, 1, &Options::default());
    // 32 stores of a warp in one bank each, and 8 loads of a row.
    assert_eq!((run.stats.shared_requests, run.stats.shared_passes), (40, 32 * 32 + 8));
}

/// The committed PTX is that of the committed source: `cargo xtask cuda-test-ptx` makes it.
#[rstest]
#[case("mistakes")]
#[case("sums")]
fn the_ptx_was_made_from_its_source(#[case] name: &str) {
    let hash = blake3::hash(&std::fs::read(file(&format!("{name}.cu"))).unwrap());
    assert_eq!(read(&format!("{name}.ptx")).lines().next(), Some(format!("// blake3 of the source: {hash}").as_str()));
}
