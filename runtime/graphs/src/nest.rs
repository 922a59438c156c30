//! Loops over tensors that lie in different ways: the axes that lie alike in all of them become one.

use crate::layout::Layout;

/// At most as many operands as `Where` has.
pub(crate) const OPERANDS: usize = 3;

/// The loops over one shape for up to three operands; what is made lies row after row.
#[derive(Clone, Debug)]
pub(crate) struct Nest {
    sizes: Vec<usize>,
    strides: Vec<[usize; OPERANDS]>,
    starts: [usize; OPERANDS],
}

/// The innermost loop.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) starts: [usize; OPERANDS],
    pub(crate) strides: [usize; OPERANDS],
    pub(crate) len: usize,
}

impl Nest {
    /// Operands that have been broadcast to `shape`.
    pub(crate) fn new(shape: &[usize], operands: &[&Layout]) -> Self {
        let mut starts = [0; OPERANDS];
        for (start, operand) in starts.iter_mut().zip(operands) {
            *start = operand.offset;
        }
        let (mut sizes, mut strides): (Vec<usize>, Vec<[usize; OPERANDS]>) = Default::default();
        for (axis, &size) in shape.iter().enumerate().filter(|(_, size)| **size != 1) {
            let mut steps = [0; OPERANDS];
            for (step, operand) in steps.iter_mut().zip(operands) {
                *step = operand.strides[axis];
            }
            match (sizes.last_mut(), strides.last_mut()) {
                (Some(outer), Some(outer_steps)) if (0..OPERANDS).all(|n| outer_steps[n] == steps[n] * size) => {
                    *outer *= size;
                    *outer_steps = steps;
                }
                _ => {
                    sizes.push(size);
                    strides.push(steps);
                }
            }
        }
        if sizes.is_empty() {
            sizes.push(1);
            strides.push([1; OPERANDS]);
        }
        Self { sizes, strides, starts }
    }

    /// Calls `body` with the place in what is made and the row of the operands, for each innermost loop.
    pub(crate) fn for_rows(&self, mut body: impl FnMut(usize, Row)) {
        let last = self.sizes.len() - 1;
        let len = self.sizes[last];
        if self.sizes.contains(&0) {
            return;
        }
        let mut row = Row { starts: self.starts, strides: self.strides[last], len };
        let (mut index, mut at) = ([0usize; 16], 0);
        debug_assert!(last < index.len());
        loop {
            body(at, row);
            at += len;
            let mut axis = last;
            loop {
                if axis == 0 {
                    return;
                }
                axis -= 1;
                index[axis] += 1;
                let steps = self.strides[axis];
                if index[axis] < self.sizes[axis] {
                    (0..OPERANDS).for_each(|n| row.starts[n] += steps[n]);
                    break;
                }
                index[axis] = 0;
                (0..OPERANDS).for_each(|n| row.starts[n] -= steps[n] * (self.sizes[axis] - 1));
            }
        }
    }
}

/// The elements of a layout, row by row.
pub(crate) fn gathered<T: Copy>(layout: &Layout, data: &[T]) -> Vec<T> {
    let mut out = Vec::with_capacity(layout.len());
    Nest::new(&layout.shape, &[layout]).for_rows(|_, row| {
        let ([at, ..], [stride, ..], len) = (row.starts, row.strides, row.len);
        match stride {
            1 => out.extend_from_slice(&data[at..at + len]),
            _ => out.extend((0..len).map(|n| data[at + n * stride])),
        }
    });
    out
}
