//! Benchmark of the fold kernels on one core: bytes of the result per second, with operands in the cache.
//!
//! `make bench-kernels` runs it. Each kernel is checked before it is timed. The best of several runs counts, because
//! other load can only slow a run down.

use std::{
    hint::black_box,
    process,
    time::{Duration, Instant},
};

use half::{bf16, f16};
use hoplite_node::{
    folding::kernels::fold,
    proto::{
        error::is_reducible,
        meta::{Dtype, Op},
    },
};

const OPS: [Op; 4] = [Op::Sum, Op::Max, Op::Prod, Op::Any];
const BLOCK_BYTES: usize = 64 * 1024;
const RUNS: usize = 20;
const RUN: Duration = Duration::from_millis(10);

fn main() {
    if cfg!(debug_assertions) {
        eprintln!("a debug build has no meaningful speed: run cargo bench -p hoplite-node");
        process::exit(2);
    }
    print!("{:15}", "");
    OPS.iter().for_each(|op| print!("{:>10}", op.to_string()));
    println!("   GB of the result per second, blocks of 64 KiB");
    let folds = |dtype: &Dtype| OPS.iter().any(|op| is_reducible(*op, *dtype));
    for dtype in Dtype::all().filter(folds) {
        print!("{:15}", dtype.to_string());
        for op in OPS {
            match is_reducible(op, dtype) {
                true => print!("{:>10.1}", rate(op, dtype)),
                false => print!("{:>10}", "-"),
            }
        }
        println!();
    }
}

/// Measures a kernel, in 10^9 bytes per second.
fn rate(op: Op, dtype: Dtype) -> f64 {
    let (one, two) = (block(dtype, 1), block(dtype, 2));
    let mut into = one.clone();
    fold(op, dtype, &mut into, &two);
    let expected = match op {
        Op::Sum => 3,
        Op::Any => 1,
        _ => 2,
    };
    assert!(into == block(dtype, expected), "{op} of {dtype} is wrong");
    let best = (0..RUNS).map(|_| {
        let (start, mut rounds) = (Instant::now(), 0_u32);
        while start.elapsed() < RUN {
            for _ in 0..16 {
                fold(op, dtype, black_box(&mut into), black_box(&two));
            }
            rounds += 16;
        }
        f64::from(rounds) * BLOCK_BYTES as f64 / start.elapsed().as_secs_f64()
    });
    best.fold(0.0, f64::max) / 1e9
}

fn block(dtype: Dtype, value: u8) -> Vec<u8> {
    let element = match dtype {
        Dtype::Float16 => f16::from(value).to_le_bytes().to_vec(),
        Dtype::BFloat16 => bf16::from(value).to_le_bytes().to_vec(),
        Dtype::Float32 => f32::from(value).to_le_bytes().to_vec(),
        Dtype::Float64 => f64::from(value).to_le_bytes().to_vec(),
        Dtype::Complex64 => [f32::from(value), 0.0].map(f32::to_le_bytes).concat(),
        Dtype::Complex128 => [f64::from(value), 0.0].map(f64::to_le_bytes).concat(),
        _ => u64::from(value).to_le_bytes()[..dtype.size() as usize].to_vec(),
    };
    element.repeat(BLOCK_BYTES / element.len())
}
