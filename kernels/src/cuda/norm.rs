//! `rms_norm.cu`: norms of rows and of gated groups.

use super::{Argument, Buffers, Contents, Launches, Target, VECTOR, format, is_vector, vector_stride};
use crate::GateOrder;
use candle_core::{DType, Tensor};

/// The launch of a norm over the last dimension, unless the kernel was not made for it.
pub(crate) fn rms_norm<'a>(x: &'a Tensor, weight: &'a Tensor, eps: f32, _target: &Target) -> Option<Launches<'a>> {
    let &size = x.dims().last()?;
    Norm { x, gate: None, weight, eps, size }.launches()
}

/// The launch of a norm beside a gate, unless the kernel was not made for it.
pub(crate) fn gated_rms_norm<'a>(
    x: &'a Tensor,
    z: &'a Tensor,
    weight: &'a Tensor,
    eps: f32,
    group_size: usize,
    order: GateOrder,
    _target: &Target,
) -> Option<Launches<'a>> {
    Norm { x, gate: Some((z, order)), weight, eps, size: group_size }.launches()
}

struct Norm<'a> {
    x: &'a Tensor,
    gate: Option<(&'a Tensor, GateOrder)>,
    weight: &'a Tensor,
    eps: f32,
    size: usize,
}

impl<'a> Norm<'a> {
    fn launches(self) -> Option<Launches<'a>> {
        let Self { x, gate, weight, eps, size } = self;
        let dtype = x.dtype();
        let vector = VECTOR / dtype.size_in_bytes();
        let made = weight.dtype() == dtype || weight.dtype() == DType::F32;
        let alike = gate.is_none_or(|(z, _)| z.dtype() == dtype);
        let aligned = weight.is_contiguous() && is_vector(weight.layout().start_offset(), weight.dtype());
        if !(made && alike && aligned && x.rank() >= 2 && size > 0 && size.is_multiple_of(vector)) {
            return None;
        }
        let [rows, rest @ ..] = x.dims() else { return None };
        let groups = rest.iter().product::<usize>() / size;
        let units = rows * groups;
        let vectors = size / vector;
        // Lanes of a unit, vectors of a lane, and threads of a block.
        let (lanes, held, threads) = match vectors {
            ..=32 => (vectors.next_power_of_two(), 1, 128),
            33..=128 => (vectors.next_power_of_two(), 1, vectors.next_power_of_two()),
            129..=2048 => (vectors.next_power_of_two() / 4, 4, vectors.next_power_of_two() / 4),
            _ => return None,
        };
        let (name, order) = match gate.map(|(_, order)| order) {
            None => ("rms_norm", 0),
            Some(GateOrder::GateThenNorm) => ("gated_norm", 0),
            Some(GateOrder::NormThenGate) => ("gated_norm", 1),
            Some(GateOrder::GateOnly) => ("gated_norm", 2),
        };
        let mut buffers = Buffers::default();
        let arguments = vec![
            buffers.input("x", x),
            buffers.input("z", gate.map(|(z, _)| z)),
            buffers.input("weight", weight),
            buffers.add("y", Contents::Output(dtype, x.dims().to_vec())),
            Argument::I64(vector_stride(x)?),
            Argument::I64(gate.map_or(Some(0), |(z, _)| vector_stride(z))?),
            Argument::I32(i32::try_from(units).ok()?),
            Argument::I32(groups as i32),
            Argument::I32(size as i32),
            Argument::I32((weight.elem_count() / size) as i32),
            Argument::I32(lanes as i32),
            Argument::I32(lanes.trailing_zeros() as i32),
            Argument::I32(order),
            Argument::F32(eps),
        ];
        let kernel = format!("{name}_{}_{}_{held}", format(dtype)?, format(weight.dtype())?);
        Some(buffers.launch(kernel, [units.div_ceil(threads / lanes), 1, 1], threads, arguments))
    }
}
