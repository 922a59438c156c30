//! The two ops of recurrent layers as functions of standard operators, for runtimes that do not know them.

use cacheplan_transforms::onnx::{FunctionProto, TensorProto};

use super::write::{Writer, int};

/// A writer of a function's body.
fn body() -> Writer {
    Writer::new(None, 0)
}

/// x `[1, tokens, channels]`, weight `[channels, 1, d_conv]`, bias, state `[1, channels, d_conv]`, lengths `[1]`.
pub(crate) fn causal_conv1d(d_conv: usize) -> FunctionProto {
    let mut w = body();
    let x = w.transpose("x", &[0, 2, 1]);
    let history = w.node_with("Concat", &["state", &x], vec![int("axis", 2)]);
    let tokens = w.node_with("Shape", &["x"], vec![int("start", 1), int("end", 2)]);
    let two = w.ints(&[2]);
    let mut sum = {
        let axes = w.ints(&[0, 2]);
        w.node("Unsqueeze", &["bias", &axes])
    };
    for tap in 0..d_conv as i64 {
        let start = w.ints(&[tap + 1]);
        let end = w.node("Add", &[&start, &tokens]);
        let part = w.node("Slice", &[&history, &start, &end, &two]);
        let (from, to) = (w.ints(&[tap]), w.ints(&[tap + 1]));
        let weight = w.node("Slice", &["weight", &from, &to, &two]);
        // [channels, 1, 1] over [1, channels, tokens].
        let weight = w.transpose(&weight, &[1, 0, 2]);
        let product = w.node("Mul", &[&part, &weight]);
        sum = w.node("Add", &[&sum, &product]);
    }
    let y = w.transpose(&sum, &[0, 2, 1]);
    let columns = w.ints(&(0..d_conv as i64).collect::<Vec<_>>());
    let lengths = w.node_with("Cast", &["lengths"], vec![int("to", TensorProto::INT64.into())]);
    let last = w.node("Add", &[&columns, &lengths]);
    let state = w.node_with("Gather", &[&history, &last], vec![int("axis", 2)]);
    w.into_function(
        "causal_conv1d",
        &["x", "weight", "bias", "state", "lengths"],
        &[(&y, "y"), (&state, "state_out")],
        &[],
    )
}

/// x `[1, tokens, heads, head_dim]`, a, b and c `[1, tokens, groups, d_state]`, d, dt `[1, tokens, heads]`, dt_bias, state
/// `[1, heads, head_dim, d_state]`, lengths `[1]`: the sum over all earlier tokens, weighed by what is left of them.
pub(crate) fn update_ssm_state(heads: usize, groups: usize, d_state: usize) -> FunctionProto {
    let mut w = body();
    let axes = |w: &mut Writer, x: &str, axes: &[i64]| {
        let axes = w.ints(axes);
        w.node("Unsqueeze", &[x, &axes])
    };
    let tokens = w.node_with("Shape", &["x"], vec![int("start", 1), int("end", 2)]);
    let tokens = w.node("Squeeze", &[&tokens]);
    let (zero, one) = (w.whole(0), w.whole(1));
    let places = w.node("Range", &[&zero, &tokens, &one]);
    let lengths = w.node_with("Cast", &["lengths"], vec![int("to", TensorProto::INT64.into())]);
    let counts = w.node("Less", &[&places, &lengths]);
    let counts = w.node_with("Cast", &[&counts], vec![int("to", TensorProto::FLOAT.into())]);
    let counts = axes(&mut w, &counts, &[0, 2]);
    // A token that does not count takes no time.
    let dt = w.node("Add", &["dt", "dt_bias"]);
    let dt = w.node("Mul", &[&dt, &counts]);
    let decay = w.node("Mul", &[&dt, "a"]);
    let second = w.whole(1);
    let decay = w.node("CumSum", &[&decay, &second]);
    let (decay, dt) = (w.transpose(&decay, &[0, 2, 1]), w.transpose(&dt, &[0, 2, 1]));
    let (ends, starts) = (axes(&mut w, &decay, &[3]), axes(&mut w, &decay, &[2]));
    let left = w.node("Sub", &[&ends, &starts]);
    let (columns, rows) = (axes(&mut w, &places, &[0]), axes(&mut w, &places, &[1]));
    let earlier = w.node("LessOrEqual", &[&columns, &rows]);
    let nothing = w.number(0.0);
    let left = w.node("Where", &[&earlier, &left, &nothing]);
    let left = w.node("Exp", &[&left]);
    let left = w.node("Where", &[&earlier, &left, &nothing]);
    let mut each = |x: &str| {
        let apart = axes(&mut w, x, &[3]);
        let shape = w.ints(&[1, 1, 1, (heads / groups) as i64, 1]);
        let expanded = w.node("Expand", &[&apart, &shape]);
        let all = w.reshape(&expanded, &[0, 0, heads as i64, d_state as i64]);
        w.transpose(&all, &[0, 2, 1, 3])
    };
    let (b, c) = (each("b"), each("c"));
    let b_columns = w.transpose(&b, &[0, 1, 3, 2]);
    let weights = w.node("MatMul", &[&c, &b_columns]);
    let weights = w.node("Mul", &[&weights, &left]);
    let steps = axes(&mut w, &dt, &[2]);
    let weights = w.node("Mul", &[&weights, &steps]);
    let x = w.transpose("x", &[0, 2, 1, 3]);
    let new = w.node("MatMul", &[&weights, &x]);
    let state = w.transpose("state", &[0, 1, 3, 2]);
    let old = w.node("MatMul", &[&c, &state]);
    let fading = w.node("Exp", &[&decay]);
    let fading = axes(&mut w, &fading, &[3]);
    let old = w.node("Mul", &[&old, &fading]);
    let y = w.node("Add", &[&new, &old]);
    let y = w.transpose(&y, &[0, 2, 1, 3]);
    let d = axes(&mut w, "d", &[1]);
    let direct = w.node("Mul", &["x", &d]);
    let y = w.node("Add", &[&y, &direct]);
    let (from, to, axis) = (w.ints(&[-1]), w.ints(&[i64::MAX]), w.ints(&[2]));
    let whole = w.node("Slice", &[&decay, &from, &to, &axis]);
    let rest = w.node("Sub", &[&whole, &decay]);
    let rest = w.node("Exp", &[&rest]);
    let rest = w.node("Mul", &[&rest, &dt]);
    let rest = axes(&mut w, &rest, &[3]);
    let inputs = w.node("Mul", &[&x, &rest]);
    let inputs = w.transpose(&inputs, &[0, 1, 3, 2]);
    let added = w.node("MatMul", &[&inputs, &b]);
    let whole = w.node("Exp", &[&whole]);
    let whole = axes(&mut w, &whole, &[3]);
    let kept = w.node("Mul", &["state", &whole]);
    let state = w.node("Add", &[&kept, &added]);
    let inputs = ["x", "a", "b", "c", "d", "dt", "dt_bias", "state", "lengths"];
    let attributes = ["nheads", "dim", "dstate", "ngroups", "dt_softplus", "chunk_size"];
    w.into_function("update_ssm_state", &inputs, &[(&y, "y"), (&state, "state_out")], &attributes)
}
