//! Reductions against references that share no code with them: integers in 128 bits, small floats in `f64` and rounded
//! by looking for the nearest code.

use super::*;
use proptest::prelude::*;

const PLAIN: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max];

/// Reduces two elements, given and returned as their bits.
fn reduced(dtype: DataType, op: ReduceOp, left: u64, right: u64) -> u64 {
    let mut accumulator = left.to_le_bytes()[..dtype.size()].to_vec();
    reduce(dtype, op, &mut accumulator, &right.to_le_bytes()[..dtype.size()]).unwrap();
    bits(&accumulator)
}

fn bits(element: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..element.len()].copy_from_slice(element);
    u64::from_le_bytes(bytes)
}

fn bits_mask(dtype: DataType) -> u64 {
    u64::MAX >> (64 - 8 * dtype.size())
}

/// An integer element as a wide number.
fn wide(dtype: DataType, bits: u64) -> i128 {
    match dtype {
        DataType::I8 => i128::from(bits as i8),
        DataType::I16 => i128::from(bits as i16),
        DataType::I32 => i128::from(bits as i32),
        DataType::I64 => i128::from(bits as i64),
        _ => i128::from(bits & bits_mask(dtype)),
    }
}

fn integers() -> impl Strategy<Value = DataType> {
    prop::sample::select(DataType::ALL.into_iter().filter(|dtype| !dtype.is_float()).collect::<Vec<_>>())
}

/// A small float format, written down again: exponent bits, mantissa bits, the largest finite code, what is beyond.
fn layout(dtype: DataType) -> (i32, i32, u64, u64) {
    match dtype {
        DataType::F16 => (5, 10, 0x7bff, 0x7c00),
        DataType::Bf16 => (8, 7, 0x7f7f, 0x7f80),
        DataType::F8E4M3 => (4, 3, 0x7e, 0x7e),
        DataType::F8E5M2 => (5, 2, 0x7b, 0x7b),
        _ => panic!("{dtype} is not small"),
    }
}

/// The values of all finite codes without sign, in order.
fn values(dtype: DataType) -> Vec<f64> {
    let (exponent_bits, mantissa_bits, largest, _) = layout(dtype);
    let bias = (1 << (exponent_bits - 1)) - 1;
    let value = |code: u64| {
        let mantissa = (code % (1 << mantissa_bits)) as f64 / 2_f64.powi(mantissa_bits);
        match (code >> mantissa_bits) as i32 {
            0 => mantissa * 2_f64.powi(1 - bias),
            exponent => (1.0 + mantissa) * 2_f64.powi(exponent - bias),
        }
    };
    (0..=largest).map(value).collect()
}

/// The code nearest to a number, found by looking.
fn nearest(dtype: DataType, values: &[f64], number: f64) -> u64 {
    let (exponent_bits, mantissa_bits, largest, beyond) = layout(dtype);
    let sign = u64::from(number.is_sign_negative()) << (exponent_bits + mantissa_bits);
    let magnitude = number.abs();
    let last = values[largest as usize];
    let limit = last + (last - values[largest as usize - 1]) / 2.0;
    let high = values.partition_point(|value| *value < magnitude) as u64;
    let code = if magnitude >= limit {
        beyond
    } else if high > largest {
        largest
    } else if high == 0 {
        0
    } else {
        let (below, above) = (magnitude - values[high as usize - 1], values[high as usize] - magnitude);
        let is_low = below < above || (below <= above && high % 2 == 1);
        if is_low { high - 1 } else { high }
    };
    sign | code
}

/// The reference for finite small floats.
fn small_reference(dtype: DataType, values: &[f64], op: ReduceOp, left: u64, right: u64) -> u64 {
    let (exponent_bits, mantissa_bits, ..) = layout(dtype);
    let sign = 1_u64 << (exponent_bits + mantissa_bits);
    let value = |code: u64| {
        if code & sign == 0 { values[code as usize] } else { -values[(code - sign) as usize] }
    };
    let (a, b) = (value(left), value(right));
    let number = match op {
        ReduceOp::Sum => a + b,
        ReduceOp::Product => a * b,
        ReduceOp::Min => return if a.total_cmp(&b).is_le() { left } else { right },
        _ => return if a.total_cmp(&b).is_ge() { left } else { right },
    };
    nearest(dtype, values, number)
}

#[test]
fn every_pair_of_8_bit_floats_is_right() {
    for dtype in [DataType::F8E4M3, DataType::F8E5M2] {
        let values = values(dtype);
        let finite = (0..256).filter(|code| (code & 0x7f) < values.len() as u64);
        let codes: Vec<u64> = finite.collect();
        for op in PLAIN {
            for &left in &codes {
                for &right in &codes {
                    let expected = small_reference(dtype, &values, op, left, right);
                    let found = reduced(dtype, op, left, right);
                    assert_eq!(found, expected, "{dtype} {op} {left:#x} {right:#x}");
                }
            }
        }
    }
}

#[test]
fn integers_wrap() {
    assert_eq!(reduced(DataType::I8, ReduceOp::Sum, 0x7f, 1), 0x80);
    assert_eq!(reduced(DataType::U16, ReduceOp::Product, 0x100, 0x100), 0);
    assert_eq!(reduced(DataType::I8, ReduceOp::Min, 0x80, 0x7f), 0x80);
    assert_eq!(reduced(DataType::U8, ReduceOp::Min, 0x80, 0x7f), 0x7f);
}

#[test]
fn nan_loses_against_a_number_and_wins_against_none() {
    let one = [
        (DataType::F64, 1_f64.to_bits(), 0x7ff8_0000_0000_0000, 0xfff0_0000_0000_0001),
        (DataType::F32, u64::from(1_f32.to_bits()), 0x7fc0_0000, 0xff80_0001),
        (DataType::F16, 0x3c00, 0x7e00, 0xfc01),
        (DataType::Bf16, 0x3f80, 0x7fc0, 0xff81),
        (DataType::F8E4M3, 0x38, 0x7f, 0xff),
        (DataType::F8E5M2, 0x3c, 0x7e, 0xfd),
    ];
    for (dtype, one, quiet, other) in one {
        for op in [ReduceOp::Min, ReduceOp::Max] {
            assert_eq!(reduced(dtype, op, one, other), one, "{dtype} {op}");
            assert_eq!(reduced(dtype, op, other, one), one, "{dtype} {op}");
            assert_eq!(reduced(dtype, op, other, other), quiet, "{dtype} {op}");
        }
        for op in [ReduceOp::Sum, ReduceOp::Product] {
            assert_eq!(reduced(dtype, op, one, other), quiet, "{dtype} {op}");
        }
    }
}

#[test]
fn negative_zero_is_the_smaller_one_on_either_side() {
    for dtype in DataType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        let minus = 1 << (8 * dtype.size() - 1);
        for (left, right) in [(0, minus), (minus, 0)] {
            assert_eq!(reduced(dtype, ReduceOp::Min, left, right), minus, "{dtype}");
            assert_eq!(reduced(dtype, ReduceOp::Max, left, right), 0, "{dtype}");
        }
    }
}

#[test]
fn averages_divide_at_the_end() {
    let finished = |dtype: DataType, bits_in: u64, ranks| {
        let mut buffer = bits_in.to_le_bytes()[..dtype.size()].to_vec();
        finish(dtype, ReduceOp::Average, ranks, &mut buffer).unwrap();
        bits(&buffer)
    };
    assert_eq!(finished(DataType::F32, 3_f32.to_bits().into(), 2), u64::from(1.5_f32.to_bits()));
    assert_eq!(finished(DataType::F16, 0x4200, 2), 0x3e00);
    // -7 / 2 is -3, and 200 ranks are more than an i8 can count.
    assert_eq!(finished(DataType::I8, (-7_i8) as u8 as u64, 2), (-3_i8) as u8 as u64);
    assert_eq!(finished(DataType::I8, (-100_i8) as u8 as u64, 200), 0);
    assert_eq!(finished(DataType::U64, u64::MAX, 1), u64::MAX);
    assert_eq!(finished(DataType::I64, i64::MIN as u64, 1), i64::MIN as u64);
}

#[test]
fn pre_multiplied_sums_multiply_each_contribution() {
    for dtype in DataType::ALL {
        let element = |value: f32| Scalar::from_f32(dtype, value).bits();
        let op = ReduceOp::PreMulSum(Scalar::from_f32(dtype, 3.0));
        let mut buffer = element(2.0).to_le_bytes()[..dtype.size()].to_vec();
        prepare(dtype, op, &mut buffer).unwrap();
        assert_eq!(bits(&buffer), element(6.0), "{dtype}");
        assert_eq!(reduced(dtype, op, element(6.0), element(1.0)), element(7.0), "{dtype}");
        finish(dtype, op, 2, &mut buffer).unwrap();
        assert_eq!(bits(&buffer), element(6.0), "{dtype}");
    }
    assert_eq!(Scalar::from_f32(DataType::I8, -1.9).bits(), 0xff);
    assert_eq!(Scalar::from_bits(DataType::U16, 0x12_3456).bits(), 0x3456);
}

#[test]
fn only_the_operations_that_need_it_touch_a_buffer_before_and_after() {
    for op in PLAIN {
        let mut buffer = [0x12, 0x34, 0x56, 0x78];
        prepare(DataType::F32, op, &mut buffer).unwrap();
        finish(DataType::F32, op, 7, &mut buffer).unwrap();
        assert_eq!(buffer, [0x12, 0x34, 0x56, 0x78]);
    }
}

#[test]
fn wrong_buffers_are_refused_and_left_alone() {
    let mut six = [1; 6];
    let error = reduce(DataType::F32, ReduceOp::Sum, &mut six, &[0; 5]).unwrap_err();
    assert_eq!(error.to_string(), "cannot reduce 5 bytes into 6 bytes: the lengths differ");
    let error = reduce(DataType::F32, ReduceOp::Sum, &mut six, &[0; 6]).unwrap_err();
    assert_eq!(error.to_string(), "6 bytes are no whole number of f32 elements of 4 bytes");
    let op = ReduceOp::PreMulSum(Scalar::from_f32(DataType::F16, 1.0));
    assert!(matches!(prepare(DataType::Bf16, op, &mut six), Err(ReduceError::ScalarType { .. })));
    assert_eq!(finish(DataType::I16, ReduceOp::Average, 0, &mut six), Err(ReduceError::NoRanks));
    assert_eq!(six, [1; 6]);
}

proptest! {
    #[test]
    fn integers_are_right(dtype in integers(), left: u64, right: u64, shift in 0u32..64) {
        let (left, right) = (left & bits_mask(dtype), (right >> shift) & bits_mask(dtype));
        let (a, b) = (wide(dtype, left), wide(dtype, right));
        let expected = [a.wrapping_add(b), a.wrapping_mul(b), a.min(b), a.max(b)];
        for (op, expected) in PLAIN.into_iter().zip(expected) {
            prop_assert_eq!(reduced(dtype, op, left, right), expected as u64 & bits_mask(dtype), "{} {}", dtype, op);
        }
    }

    #[test]
    fn averages_of_integers_are_right(dtype in integers(), element: u64, ranks in 1u32..) {
        let element = element & bits_mask(dtype);
        let mut buffer = element.to_le_bytes()[..dtype.size()].to_vec();
        finish(dtype, ReduceOp::Average, ranks, &mut buffer).unwrap();
        let expected = wide(dtype, element) / i128::from(ranks);
        prop_assert_eq!(bits(&buffer), expected as u64 & bits_mask(dtype));
    }

    #[test]
    fn wide_floats_are_right(left: f64, right: f64, narrow_left: f32, narrow_right: f32) {
        let (low, high) = if left.total_cmp(&right).is_le() { (left, right) } else { (right, left) };
        let expected = [left + right, left * right, low, high];
        for (op, expected) in PLAIN.into_iter().zip(expected) {
            prop_assert_eq!(reduced(DataType::F64, op, left.to_bits(), right.to_bits()), expected.to_bits());
        }
        let (left, right) = (narrow_left, narrow_right);
        let (low, high) = if left.total_cmp(&right).is_le() { (left, right) } else { (right, left) };
        let expected = [left + right, left * right, low, high];
        for (op, expected) in PLAIN.into_iter().zip(expected) {
            let found = reduced(DataType::F32, op, left.to_bits().into(), right.to_bits().into());
            prop_assert_eq!(found, u64::from(expected.to_bits()));
        }
    }

    #[test]
    fn half_floats_are_right(pairs in prop::collection::vec((0u64..0x1_0000, 0u64..0x1_0000), 200)) {
        for dtype in [DataType::F16, DataType::Bf16] {
            let values = values(dtype);
            let is_finite = |code: u64| (code & 0x7fff) < values.len() as u64;
            for &(left, right) in pairs.iter().filter(|(left, right)| is_finite(*left) && is_finite(*right)) {
                for op in PLAIN {
                    let expected = small_reference(dtype, &values, op, left, right);
                    let found = reduced(dtype, op, left, right);
                    prop_assert_eq!(found, expected, "{} {} {:#x} {:#x}", dtype, op, left, right);
                }
            }
        }
    }

    /// Any length, any alignment: each element as if it were alone, and no byte around them touched.
    #[test]
    fn buffers_are_reduced_element_by_element(
        dtype in prop::sample::select(DataType::ALL.to_vec()),
        op in prop::sample::select(PLAIN.to_vec()),
        offsets in (0usize..8, 0usize..8),
        left in prop::collection::vec(any::<u8>(), 0..600),
        seed: u8,
    ) {
        let size = dtype.size();
        let length = left.len() / size * size;
        let right: Vec<u8> = left.iter().map(|byte| byte.wrapping_mul(31) ^ seed).collect();
        let mut accumulator = vec![0xaa; offsets.0 + length + 3];
        accumulator[offsets.0..][..length].copy_from_slice(&left[..length]);
        let mut input = vec![0xbb; offsets.1 + length];
        input[offsets.1..].copy_from_slice(&right[..length]);
        reduce(dtype, op, &mut accumulator[offsets.0..][..length], &input[offsets.1..]).unwrap();
        let pairs = left[..length].chunks(size).zip(right[..length].chunks(size));
        for (found, (a, b)) in accumulator[offsets.0..][..length].chunks(size).zip(pairs) {
            prop_assert_eq!(bits(found), reduced(dtype, op, bits(a), bits(b)));
        }
        prop_assert!(accumulator[..offsets.0].iter().all(|byte| *byte == 0xaa));
        prop_assert!(accumulator[offsets.0 + length..].iter().all(|byte| *byte == 0xaa));
    }
}
