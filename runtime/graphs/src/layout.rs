//! How the elements of a tensor lie, so that moving them costs nothing.

/// More axes than any operator has.
pub(crate) const MAX_RANK: usize = 12;

/// How many elements a shape has, if that can be counted: also where one of its axes has none, for its strides.
pub(crate) fn count(shape: &[usize]) -> Option<usize> {
    let all = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size.max(1)))?;
    Some(if shape.contains(&0) { 0 } else { all })
}

/// Where the elements of a tensor lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) shape: Vec<usize>,
    /// Elements between neighbours along each axis; 0 where an axis repeats.
    pub(crate) strides: Vec<usize>,
    pub(crate) offset: usize,
}

impl Layout {
    /// Row after row.
    pub(crate) fn contiguous(shape: Vec<usize>) -> Self {
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis].max(1);
        }
        Self { shape, strides, offset: 0 }
    }

    pub(crate) fn rank(&self) -> usize {
        self.shape.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub(crate) fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected *= size.max(1);
            fits
        })
    }

    /// From the first to behind the last of its elements.
    pub(crate) fn span(&self) -> std::ops::Range<usize> {
        if self.len() == 0 {
            return self.offset..self.offset;
        }
        let last: usize = self.shape.iter().zip(&self.strides).map(|(size, stride)| (size - 1) * stride).sum();
        self.offset..self.offset + last + 1
    }

    /// Repeated over the axes of `shape`, which it must fit.
    pub(crate) fn broadcast(&self, shape: &[usize]) -> Option<Self> {
        let ahead = shape.len().checked_sub(self.rank())?;
        let mut strides = vec![0; shape.len()];
        for (axis, (&size, &stride)) in self.shape.iter().zip(&self.strides).enumerate() {
            if size == shape[ahead + axis] {
                strides[ahead + axis] = stride;
            } else if size != 1 {
                return None;
            }
        }
        Some(Self { shape: shape.to_vec(), strides, offset: self.offset })
    }

    pub(crate) fn narrow(&self, axis: usize, start: usize, len: usize) -> Self {
        let mut narrowed = self.clone();
        narrowed.shape[axis] = len;
        if len > 0 {
            narrowed.offset += start * self.strides[axis];
        }
        narrowed
    }

    pub(crate) fn permuted(&self, order: &[usize]) -> Self {
        let take = |from: &[usize]| order.iter().map(|&axis| from[axis]).collect();
        Self { shape: take(&self.shape), strides: take(&self.strides), offset: self.offset }
    }

    /// The same elements in another shape of as many, if they need not be moved for it.
    pub(crate) fn reshaped(&self, shape: &[usize]) -> Option<Self> {
        if self.len() == 0 || self.is_contiguous() {
            return Some(Self { offset: self.offset, ..Self::contiguous(shape.to_vec()) });
        }
        // Runs of axes that lie behind each other are divided anew; sizes of one are passed over.
        let old: Vec<(usize, usize)> =
            self.shape.iter().copied().zip(self.strides.iter().copied()).filter(|(size, _)| *size != 1).collect();
        let mut strides = vec![0; shape.len()];
        let (mut from, mut to) = (0, 0);
        while from < old.len() {
            let (mut old_len, mut last) = (old[from].0, from);
            while to < shape.len() && shape[to] == 1 {
                to += 1;
            }
            let first_to = to;
            let mut new_len = *shape.get(to)?;
            while old_len != new_len {
                if old_len < new_len {
                    last += 1;
                    let &(size, stride) = old.get(last)?;
                    if old[last - 1].1 != stride * size {
                        return None;
                    }
                    old_len *= size;
                } else {
                    to += 1;
                    new_len *= shape.get(to)?;
                }
            }
            let mut stride = old[last].1;
            for axis in (first_to..=to).rev() {
                strides[axis] = stride;
                stride *= shape[axis];
            }
            (from, to) = (last + 1, to + 1);
        }
        Some(Self { shape: shape.to_vec(), strides, offset: self.offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::split(&[6, 4], &[4, 1], &[2, 3, 4], Some(vec![12, 4, 1]))]
    #[case::merged_rows_of_a_slice(&[2, 3, 4], &[24, 8, 1], &[6, 4], Some(vec![8, 1]))]
    #[case::merged_channels_of_a_slice(&[2, 3, 4], &[24, 8, 1], &[2, 12], None)]
    #[case::repeated(&[2, 2, 3], &[3, 0, 1], &[4, 3], None)]
    #[case::ones(&[1, 3, 1, 4], &[7, 8, 5, 1], &[3, 4], Some(vec![8, 1]))]
    fn a_shape_changes_without_moving_where_it_can(
        #[case] shape: &[usize],
        #[case] strides: &[usize],
        #[case] to: &[usize],
        #[case] expected: Option<Vec<usize>>,
    ) {
        let layout = Layout { shape: shape.to_vec(), strides: strides.to_vec(), offset: 5 };
        assert_eq!(layout.reshaped(to).map(|layout| layout.strides), expected);
    }
}
