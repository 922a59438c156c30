//! Functions of typed operands as functions of registers.

/// A function of typed operands as one of registers.
macro_rules! scalar {
    ($t:ty, ($($x:ident),*), $e:expr) => { scalar!(|$($x: $t),*| $e) };
    (|$a:ident: $A:ty| $e:expr) => {
        (|a: u64, _: u64, _: u64| { let $a = <$A as Bits>::of(a); Bits::bits($e) }) as Scalar
    };
    (|$a:ident: $A:ty, $b:ident: $B:ty| $e:expr) => {
        (|a: u64, b: u64, _: u64| { let ($a, $b) = (<$A as Bits>::of(a), <$B as Bits>::of(b)); Bits::bits($e) }) as Scalar
    };
    (|$a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty| $e:expr) => {
        (|a: u64, b: u64, c: u64| {
            let ($a, $b, $c) = (<$A as Bits>::of(a), <$B as Bits>::of(b), <$C as Bits>::of(c));
            Bits::bits($e)
        }) as Scalar
    };
}

/// The same expression for each integer type that is named.
macro_rules! by_type {
    ($ty:expr, $types:tt, |$($x:ident),*| $e:expr) => { by_type!($ty, $types, ($($x),*), $e) };
    ($ty:expr, [$($name:ident = $int:ty),*], $operands:tt, $e:expr) => {
        match $ty { $(Type::$name => Some(scalar!($int, $operands, $e)),)* _ => None }
    };
}

macro_rules! integers {
    ($ty:expr, |$($x:ident),*| $e:expr) => {
        by_type!($ty, [U16 = u16, S16 = i16, U32 = u32, S32 = i32, U64 = u64, S64 = i64], |$($x),*| $e)
    };
}

macro_rules! bits {
    ($ty:expr, |$($x:ident),*| $e:expr) => {
        by_type!($ty, [Pred = bool, B16 = u16, B32 = u32, B64 = u64], |$($x),*| $e)
    };
}

/// An f32 operation, with its operands and its result flushed where the instruction says so.
macro_rules! f32_op {
    ($flush:expr, |$($x:ident),*| $e:expr) => {
        if $flush { scalar!(|$($x: f32),*| { $(let $x = flush($x);)* flush($e) }) } else { scalar!(|$($x: f32),*| $e) }
    };
}
