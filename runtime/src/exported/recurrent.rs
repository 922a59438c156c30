//! The two ops of recurrent layers as functions of standard operators, for runtimes that do not know them.
//!
//! They compute in f32 whatever their operands are, and give what these are.

use cacheplan_transforms::onnx::{FunctionProto, TensorProto};

use super::write::{Writer, int};

/// The input as f32.
fn wide(w: &mut Writer, x: &str) -> String {
    w.node_with("Cast", &[x], vec![int("to", TensorProto::FLOAT.into())])
}

/// x `[batch, tokens, channels]`, weight `[channels, 1, d_conv]`, bias, state `[batch, channels, d_conv]`, lengths
/// `[batch]`.
pub(crate) fn causal_conv1d(d_conv: usize) -> FunctionProto {
    let mut w = Writer::of_function();
    let [x, weight, bias, state] = ["x", "weight", "bias", "state"].map(|name| wide(&mut w, name));
    let x = w.transpose(&x, &[0, 2, 1]);
    let history = w.node_with("Concat", &[&state, &x], vec![int("axis", 2)]);
    let tokens = w.tokens_of("x");
    let two = w.ints(&[2]);
    let mut sum = w.unsqueeze(&bias, &[0, 2]);
    for tap in 0..d_conv as i64 {
        let start = w.ints(&[tap + 1]);
        let end = w.node("Add", &[&start, &tokens]);
        let part = w.node("Slice", &[&history, &start, &end, &two]);
        let (from, to) = (w.ints(&[tap]), w.ints(&[tap + 1]));
        let weight = w.node("Slice", &[&weight, &from, &to, &two]);
        // [channels, 1, 1] over [batch, channels, tokens].
        let weight = w.transpose(&weight, &[1, 0, 2]);
        let product = w.node("Mul", &[&part, &weight]);
        sum = w.node("Add", &[&sum, &product]);
    }
    let y = w.transpose(&sum, &[0, 2, 1]);
    let y = w.node("CastLike", &[&y, "x"]);
    // The last columns of each sequence, chosen by a product with ones where column and place are the same.
    let counted = w.counted("lengths", &tokens);
    let counted = w.unsqueeze(&counted, &[1, 2]);
    let columns = w.ints(&(0..d_conv as i64).collect::<Vec<_>>());
    let last = w.node("Add", &[&columns, &counted]);
    let width = w.node_with("Shape", &[&history], vec![int("start", 2), int("end", 3)]);
    let places = w.places(&width);
    let places = w.unsqueeze(&places, &[0, 2]);
    let chosen = w.node("Equal", &[&places, &last]);
    let chosen = wide(&mut w, &chosen);
    let state = w.node("MatMul", &[&history, &chosen]);
    let state = w.node("CastLike", &[&state, "state"]);
    w.into_function(
        "causal_conv1d",
        &["x", "weight", "bias", "state", "lengths"],
        &[(&y, "y"), (&state, "state_out")],
        &[],
    )
}

/// x `[batch, tokens, heads, head_dim]`, a, b and c `[batch, tokens, groups, d_state]`, d, dt `[batch, tokens, heads]`,
/// dt_bias, state `[batch, heads, head_dim, d_state]`, lengths `[batch]`: the sum over all earlier tokens, weighed by what
/// is left of them.
pub(crate) fn update_ssm_state(heads: usize, groups: usize, d_state: usize) -> FunctionProto {
    let mut w = Writer::of_function();
    let names = ["x", "a", "b", "c", "d", "dt", "dt_bias", "state"];
    let [x, a, b, c, d, dt, dt_bias, before] = names.map(|name| wide(&mut w, name));
    let all = w.tokens_of("x");
    let places = w.places(&all);
    let counted = w.counted("lengths", &all);
    let counted = w.unsqueeze(&counted, &[1]);
    let counts = w.node("Less", &[&places, &counted]);
    let counts = wide(&mut w, &counts);
    let counts = w.unsqueeze(&counts, &[2]);
    // A token that does not count takes no time.
    let dt = w.node("Add", &[&dt, &dt_bias]);
    let dt = w.node("Mul", &[&dt, &counts]);
    let decay = w.node("Mul", &[&dt, &a]);
    let second = w.whole(1);
    let decay = w.node("CumSum", &[&decay, &second]);
    let (decay, dt) = (w.transpose(&decay, &[0, 2, 1]), w.transpose(&dt, &[0, 2, 1]));
    let (ends, starts) = (w.unsqueeze(&decay, &[3]), w.unsqueeze(&decay, &[2]));
    let left = w.node("Sub", &[&ends, &starts]);
    let (columns, rows) = (w.unsqueeze(&places, &[0]), w.unsqueeze(&places, &[1]));
    let earlier = w.node("LessOrEqual", &[&columns, &rows]);
    let nothing = w.wide_number(0.0);
    let left = w.node("Where", &[&earlier, &left, &nothing]);
    let left = w.node("Exp", &[&left]);
    let left = w.node("Where", &[&earlier, &left, &nothing]);
    let mut each = |x: &str| {
        let apart = w.unsqueeze(x, &[3]);
        let shape = w.ints(&[1, 1, 1, (heads / groups) as i64, 1]);
        let expanded = w.node("Expand", &[&apart, &shape]);
        let all = w.reshape(&expanded, &[0, 0, heads as i64, d_state as i64]);
        w.transpose(&all, &[0, 2, 1, 3])
    };
    let (b, c) = (each(&b), each(&c));
    let b_columns = w.transpose(&b, &[0, 1, 3, 2]);
    let weights = w.node("MatMul", &[&c, &b_columns]);
    let weights = w.node("Mul", &[&weights, &left]);
    let steps = w.unsqueeze(&dt, &[2]);
    let weights = w.node("Mul", &[&weights, &steps]);
    let by_head = w.transpose(&x, &[0, 2, 1, 3]);
    let new = w.node("MatMul", &[&weights, &by_head]);
    let state = w.transpose(&before, &[0, 1, 3, 2]);
    let old = w.node("MatMul", &[&c, &state]);
    let fading = w.node("Exp", &[&decay]);
    let fading = w.unsqueeze(&fading, &[3]);
    let old = w.node("Mul", &[&old, &fading]);
    let y = w.node("Add", &[&new, &old]);
    let y = w.transpose(&y, &[0, 2, 1, 3]);
    let d = w.unsqueeze(&d, &[1]);
    let direct = w.node("Mul", &[&x, &d]);
    let y = w.node("Add", &[&y, &direct]);
    let y = w.node("CastLike", &[&y, "x"]);
    let (from, to, axis) = (w.ints(&[-1]), w.ints(&[i64::MAX]), w.ints(&[2]));
    let whole = w.node("Slice", &[&decay, &from, &to, &axis]);
    let rest = w.node("Sub", &[&whole, &decay]);
    let rest = w.node("Exp", &[&rest]);
    let rest = w.node("Mul", &[&rest, &dt]);
    let rest = w.unsqueeze(&rest, &[3]);
    let inputs = w.node("Mul", &[&by_head, &rest]);
    let inputs = w.transpose(&inputs, &[0, 1, 3, 2]);
    let added = w.node("MatMul", &[&inputs, &b]);
    let whole = w.node("Exp", &[&whole]);
    let whole = w.unsqueeze(&whole, &[3]);
    let kept = w.node("Mul", &[&before, &whole]);
    let state = w.node("Add", &[&kept, &added]);
    let state = w.node("CastLike", &[&state, "state"]);
    let inputs = ["x", "a", "b", "c", "d", "dt", "dt_bias", "state", "lengths"];
    let attributes = ["nheads", "dim", "dstate", "ngroups", "dt_softplus", "chunk_size"];
    w.into_function("update_ssm_state", &inputs, &[(&y, "y"), (&state, "state_out")], &attributes)
}
