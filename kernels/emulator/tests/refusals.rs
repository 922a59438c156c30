//! PTX that is not understood is an error that names its line.

use cacheplan_emulator::{Device, Module, Options, Shape};
use rstest::rstest;

fn kernel(body: &str) -> String {
    format!(
        ".version 9.0\n.target sm_80\n.address_size 64\n.visible .entry k(\n.param .u64 k_param_0\n)\n{{\n\
         .reg .pred %p<4>;\n.reg .b16 %rs<4>;\n.reg .b32 %r<8>;\n.reg .f32 %f<8>;\n.reg .b64 %rd<8>;\n{body}\nret;\n}}\n"
    )
}

#[rstest]
#[case::opcode("frobnicate.u32 %r1, %r2;", "unknown instruction")]
#[case::modifier("add.sat.s32 %r1, %r2, %r3;", "unknown modifier .sat")]
#[case::directed_rounding("add.rm.f32 %f1, %f2, %f3;", "unknown modifier .rm")]
#[case::type_of_an_operation("add.f16x2 %r1, %r2, %r3;", "unknown instruction")]
#[case::register("add.s32 %r1, %r2, %q3;", "operand %q3")]
#[case::label("bra $nowhere;", "no such label")]
#[case::named_barrier("bar.sync 1;", "unknown instruction")]
#[case::part_of_a_block("bar.sync 0, 64;", "unknown instruction")]
#[case::local_memory(".local .b8 stack[16];", "directive")]
#[case::call("call.uni f;", "operand f")]
#[case::carry("add.cc.u32 %r1, %r2, %r3;", "unknown modifier .cc")]
#[case::number_of_operands("add.s32 %r1, %r2;", "unknown instruction")]
#[case::special_register("mov.u64 %rd1, %clock64;", "operand %clock64")]
#[case::bulk_copies("cp.async.bulk.wait_group 0;", "unknown modifier .bulk")]
fn unknown_ptx_is_refused(#[case] line: &str, #[case] reason: &str) {
    let error = Module::parse(&kernel(line)).unwrap_err();
    assert!(error.what.contains(reason), "{error}");
    assert_eq!(error.line, 13, "{error}");
}

#[rstest]
#[case::variables(".global .u32 counter;")]
#[case::functions(".visible .func f()")]
fn unknown_directives_are_refused(#[case] line: &str) {
    let error = Module::parse(&format!(".version 9.0\n{line}\n")).unwrap_err();
    assert!(error.what.contains("directive") && error.line == 2, "{error}");
}

#[rstest]
#[case::too_few_bytes(vec![0; 4], 32)]
#[case::no_threads(vec![0; 8], 0)]
#[case::too_many_threads(vec![0; 8], 2048)]
fn launches_that_do_not_fit_are_refused(#[case] parameters: Vec<u8>, #[case] threads: u32) {
    let module = Module::parse(&kernel("")).unwrap();
    let shape = Shape { grid: [1; 3], block: [threads, 1, 1], shared_bytes: 0 };
    let refused = Device::new().run(module.kernel("k").unwrap(), &shape, &parameters, &Options::default());
    assert!(refused.unwrap_err().to_string().starts_with("k was launched with"));
}
