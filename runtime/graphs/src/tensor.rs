//! Numbers of a tensor, with the layout they lie in.

use std::sync::Arc;

use cacheplan_kernels::StateLayerView;
use candle_core::Tensor;
use half::{bf16, f16};

use crate::layout::Layout;
use crate::nest::gathered;

/// What a tensor is made of. Whole numbers of all widths are `i64`, and truth values are 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// `f32`.
    Float,
    /// `f16`, which is computed with as `f32`.
    Half,
    /// `bf16`, likewise.
    Brain,
    /// `i64`, and what is narrower.
    Int,
}

impl Element {
    /// Whether it is no whole number.
    pub fn is_float(self) -> bool {
        self != Self::Int
    }
}

/// The numbers of a tensor that is made: of 16 bits are only those that a run is given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Data {
    Float(Vec<f32>),
    Int(Vec<i64>),
}

/// The numbers of a tensor, lent.
#[derive(Clone, Copy, Debug)]
pub enum Slice<'a> {
    /// `f32`.
    Float(&'a [f32]),
    /// `f16`.
    Half(&'a [f16]),
    /// `bf16`.
    Brain(&'a [bf16]),
    /// `i64`.
    Int(&'a [i64]),
}

/// The numbers of a tensor, lent to be written.
#[derive(Debug)]
pub enum SliceMut<'a> {
    /// `f32`.
    Float(&'a mut [f32]),
    /// `f16`.
    Half(&'a mut [f16]),
    /// `bf16`.
    Brain(&'a mut [bf16]),
}

/// A tensor of a program: where its numbers are, and how they lie there.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) place: Source,
    pub(crate) element: Element,
    pub(crate) layout: Layout,
}

#[derive(Clone, Debug)]
pub(crate) enum Source {
    Constant(Arc<Data>),
    /// The graph's input of that number.
    Input(usize),
    /// The same input, after that step wrote to it.
    Written(usize, usize),
    /// What a step makes.
    Buffer(usize),
}

/// A tensor that a run gave: parts one behind the other along an axis.
#[derive(Clone, Debug)]
pub struct View<'a> {
    pub(crate) parts: Vec<(Slice<'a>, Layout)>,
    pub(crate) axis: usize,
    /// What the graph says that it is made of.
    pub(crate) element: Element,
}

impl Data {
    pub(crate) const fn empty(element: Element) -> Self {
        match element {
            Element::Float | Element::Half | Element::Brain => Self::Float(Vec::new()),
            Element::Int => Self::Int(Vec::new()),
        }
    }

    pub(crate) fn zeros(element: Element, len: usize) -> Result<Self, String> {
        let mut data = Self::empty(element);
        data.reserve(len)?;
        data.resize(len);
        Ok(data)
    }

    /// Makes room for `len` numbers.
    pub(crate) fn reserve(&mut self, len: usize) -> Result<(), String> {
        let reserved = match self {
            Self::Float(data) => data.try_reserve_exact(len.saturating_sub(data.len())),
            Self::Int(data) => data.try_reserve_exact(len.saturating_sub(data.len())),
        };
        reserved.map_err(|_| format!("there is no memory for {len} numbers"))
    }

    /// As many numbers as that; what they are is not said.
    pub(crate) fn resize(&mut self, len: usize) {
        match self {
            Self::Float(data) => data.resize(len, 0.0),
            Self::Int(data) => data.resize(len, 0),
        }
    }

    pub(crate) fn element(&self) -> Element {
        match self {
            Self::Float(_) => Element::Float,
            Self::Int(_) => Element::Int,
        }
    }

    pub(crate) fn slice(&self) -> Slice<'_> {
        match self {
            Self::Float(data) => Slice::Float(data),
            Self::Int(data) => Slice::Int(data),
        }
    }
}

impl<'a> SliceMut<'a> {
    /// The part of it from `start` on, `len` long, and what is behind; as much as there is.
    pub fn cut(self, start: usize, len: usize) -> (Self, Self) {
        fn cut<T>(data: &mut [T], start: usize, len: usize) -> (&mut [T], &mut [T]) {
            let start = start.min(data.len());
            let behind = &mut data[start..];
            behind.split_at_mut(len.min(behind.len()))
        }
        match self {
            Self::Float(data) => {
                let (part, rest) = cut(data, start, len);
                (Self::Float(part), Self::Float(rest))
            }
            Self::Half(data) => {
                let (part, rest) = cut(data, start, len);
                (Self::Half(part), Self::Half(rest))
            }
            Self::Brain(data) => {
                let (part, rest) = cut(data, start, len);
                (Self::Brain(part), Self::Brain(rest))
            }
        }
    }
}

impl SliceMut<'_> {
    /// Lent on.
    pub(crate) fn lend(&mut self) -> SliceMut<'_> {
        match self {
            Self::Float(data) => SliceMut::Float(data),
            Self::Half(data) => SliceMut::Half(data),
            Self::Brain(data) => SliceMut::Brain(data),
        }
    }

    /// To be read.
    pub fn slice(&self) -> Slice<'_> {
        match self {
            Self::Float(data) => Slice::Float(data),
            Self::Half(data) => Slice::Half(data),
            Self::Brain(data) => Slice::Brain(data),
        }
    }
}

impl Source {
    /// The input that it is, as it came or written to.
    pub(crate) fn input(&self) -> Option<usize> {
        match self {
            Self::Input(number) | Self::Written(number, _) => Some(*number),
            Self::Constant(_) | Self::Buffer(_) => None,
        }
    }
}

impl Slice<'_> {
    /// Which of them it is.
    pub fn element(&self) -> Element {
        match self {
            Self::Float(_) => Element::Float,
            Self::Half(_) => Element::Half,
            Self::Brain(_) => Element::Brain,
            Self::Int(_) => Element::Int,
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Self::Float(data) => data.len(),
            Self::Half(data) => data.len(),
            Self::Brain(data) => data.len(),
            Self::Int(data) => data.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// States of the sequences of a call where they lie in a pool.
#[derive(Clone, Debug)]
pub struct Pooled<'a> {
    /// The pool, `[slots, elements of a slot]`.
    pub pool: &'a Tensor,
    /// Where a state lies in a slot.
    pub view: StateLayerView,
    /// The slot of each sequence; -1 for one whose tokens do not count.
    pub slots: Vec<i32>,
}

impl Value {
    pub(crate) fn constant(data: Data, shape: Vec<usize>) -> Self {
        let element = data.element();
        Self { place: Source::Constant(Arc::new(data)), element, layout: Layout::contiguous(shape) }
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.layout.shape
    }

    pub(crate) fn with(&self, layout: Layout) -> Self {
        Self { place: self.place.clone(), element: self.element, layout }
    }
}

/// What a kernel reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand<'a> {
    pub(crate) data: Slice<'a>,
    pub(crate) layout: &'a Layout,
}

impl<'a> Operand<'a> {
    pub(crate) fn floats(&self) -> Result<&'a [f32], String> {
        match self.data {
            Slice::Float(data) => Ok(data),
            _ => Err("numbers of another type, where those of f32 were expected".to_owned()),
        }
    }

    pub(crate) fn ints(&self) -> Result<&'a [i64], String> {
        match self.data {
            Slice::Int(data) => Ok(data),
            _ => Err("numbers that are not whole, where whole ones were expected".to_owned()),
        }
    }

    /// All of it, row by row.
    pub(crate) fn gathered(&self) -> Result<Vec<f32>, String> {
        widened(self.layout, self.data).ok_or_else(|| "whole numbers, where others were expected".to_owned())
    }

    /// All of it, where it lies row by row.
    pub(crate) fn rows(&self) -> Result<&'a [f32], String> {
        Ok(&self.floats()?[self.layout.offset..][..self.layout.len()])
    }
}

impl View<'_> {
    /// Its shape.
    pub fn shape(&self) -> Vec<usize> {
        let mut shape = self.parts.first().map(|(_, layout)| layout.shape.clone()).unwrap_or_default();
        if let Some(size) = shape.get_mut(self.axis) {
            *size = self.parts.iter().map(|(_, layout)| layout.shape[self.axis]).sum();
        }
        shape
    }

    /// The part of it from `start` on, `len` long, along an axis; `None` where it does not have that.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Option<Self> {
        let size = *self.shape().get(axis)?;
        let end = start.checked_add(len).filter(|&end| end <= size)?;
        let mut first = 0;
        let parts = self.parts.iter().map(|(data, layout)| {
            // Along the axis of the parts each has its own stretch.
            let (from, to) = if axis == self.axis {
                let own = first..first + layout.shape[axis];
                first = own.end;
                let from = start.clamp(own.start, own.end) - own.start;
                (from, (end.clamp(own.start, own.end) - own.start).max(from))
            } else {
                (start, end)
            };
            (*data, layout.narrow(axis, from, to - from))
        });
        Some(Self { parts: parts.collect(), axis: self.axis, element: self.element })
    }

    /// Its numbers row by row, rounded to what the graph says that they are; `None` where they are whole numbers.
    pub fn floats(&self) -> Option<Vec<f32>> {
        let parts = self.parts.iter().map(|(data, layout)| Some((widened(layout, *data)?, layout)));
        let mut parts: Vec<(Vec<f32>, &Layout)> = parts.collect::<Option<_>>()?;
        let mut values = if parts.len() == 1 {
            parts.pop()?.0
        } else {
            let outer: usize = self.shape().get(..self.axis)?.iter().product();
            let mut values = Vec::with_capacity(parts.iter().map(|(part, _)| part.len()).sum());
            for row in 0..outer {
                for (part, _) in &parts {
                    let width = part.len().checked_div(outer).unwrap_or(0);
                    values.extend_from_slice(&part[row * width..][..width]);
                }
            }
            values
        };
        match self.element {
            Element::Half => values.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
            Element::Brain => values.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32()),
            Element::Float | Element::Int => {}
        }
        Some(values)
    }
}

/// The elements of a layout, row by row, as `f32`; `None` where they are whole numbers.
fn widened(layout: &Layout, data: Slice<'_>) -> Option<Vec<f32>> {
    match data {
        Slice::Float(data) => Some(gathered(layout, data)),
        Slice::Half(data) => Some(gathered(layout, data).into_iter().map(f16::to_f32).collect()),
        Slice::Brain(data) => Some(gathered(layout, data).into_iter().map(bf16::to_f32).collect()),
        Slice::Int(_) => None,
    }
}

/// Numbers as they are stored.
pub(crate) trait Stored: Copy {
    fn wide(self) -> f32;
    fn narrow(value: f32) -> Self;
}

impl Stored for f32 {
    fn wide(self) -> f32 {
        self
    }

    fn narrow(value: f32) -> Self {
        value
    }
}

impl Stored for f16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }

    fn narrow(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Stored for bf16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }

    fn narrow(value: f32) -> Self {
        Self::from_f32(value)
    }
}
