//! Data-parallel training of a small model on the processor.
//!
//! Every rank has its share of the data. After each step the gradients of all ranks are summed, layer by layer, while the
//! layers before are still being computed. One process reaches the same weights, up to the order in which numbers are
//! added; the example computes both and compares them.
//!
//! ```text
//! railnet run -n 4 -- target/release/examples/train
//! ```
#![allow(clippy::print_stdout, reason = "it is a program")]

use railnet::{Communicator, Error, Pending, ReduceOp};

const INPUTS: usize = 8;
const HIDDEN: usize = 64;
/// Samples of all ranks in a step: a number that many numbers of ranks divide.
const BATCH: usize = 240;
const STEPS: usize = 200;
const RATE: f32 = 0.5;

/// Two layers with tanh between them.
struct Model {
    first: Vec<f32>,
    second: Vec<f32>,
}

impl Model {
    /// The same everywhere: small numbers of both signs.
    fn new() -> Self {
        let weight = |index: usize, many: usize| {
            let number = (index as f32 * 12.9898).sin() * 43_758.547;
            (number - number.floor() - 0.5) / (many as f32).sqrt()
        };
        Self {
            first: (0..INPUTS * HIDDEN).map(|index| weight(index, INPUTS)).collect(),
            second: (0..HIDDEN).map(|index| weight(index + 7777, HIDDEN)).collect(),
        }
    }

    fn hidden(&self, input: &[f32]) -> Vec<f32> {
        let rows = self.first.chunks_exact(INPUTS);
        rows.map(|row| row.iter().zip(input).map(|(weight, x)| weight * x).sum::<f32>().tanh()).collect()
    }

    fn apply(&mut self, first: &[f32], second: &[f32]) {
        let pairs = self.first.iter_mut().zip(first).chain(self.second.iter_mut().zip(second));
        for (weight, gradient) in pairs {
            *weight -= RATE * gradient / BATCH as f32;
        }
    }
}

/// What is to be learned: an input, and what the model should make of it.
fn sample(step: usize, index: usize) -> ([f32; INPUTS], f32) {
    let input =
        std::array::from_fn(|place| ((step * BATCH + index) as f32 * 0.37 + place as f32 * 1.7).sin());
    (input, (input[0] - 0.5 * input[2]).tanh())
}

/// The error of a share of the data, and the gradients of both layers. `send` gets each as soon as it is there: that of
/// the last layer first.
fn backward(
    model: &Model,
    step: usize,
    share: std::ops::Range<usize>,
    mut send: impl FnMut(Vec<f32>) -> Result<(), Error>,
) -> Result<f32, Error> {
    let samples: Vec<_> = share.map(|index| sample(step, index)).collect();
    let hidden: Vec<_> = samples.iter().map(|(input, _)| model.hidden(input)).collect();
    let mut loss = 0.0;
    let mut second = vec![0.0; HIDDEN];
    let mut differences = Vec::with_capacity(samples.len());
    for ((_, target), hidden) in samples.iter().zip(&hidden) {
        let output: f32 = model.second.iter().zip(hidden).map(|(weight, value)| weight * value).sum();
        let difference = output - target;
        loss += difference * difference / 2.0;
        second.iter_mut().zip(hidden).for_each(|(gradient, value)| *gradient += difference * value);
        differences.push(difference);
    }
    send(second)?;
    let mut first = vec![0.0; INPUTS * HIDDEN];
    for (((input, _), hidden), difference) in samples.iter().zip(&hidden).zip(differences) {
        for (unit, row) in first.chunks_exact_mut(INPUTS).enumerate() {
            let slope = difference * model.second[unit] * (1.0 - hidden[unit] * hidden[unit]);
            row.iter_mut().zip(input).for_each(|(gradient, x)| *gradient += slope * x);
        }
    }
    send(first)?;
    Ok(loss)
}

/// Trains on all ranks together.
fn train(world: &Communicator) -> Result<Model, Error> {
    let mut model = Model::new();
    let each = BATCH / world.size();
    let share = world.rank() * each..(world.rank() + 1) * each;
    for step in 0..STEPS {
        let mut sums: Vec<Pending<'_, f32>> = Vec::new();
        let loss = backward(&model, step, share.clone(), |gradient| {
            sums.push(world.start_all_reduce(gradient, ReduceOp::Sum)?);
            Ok(())
        })?;
        let mut sums = sums.into_iter().map(Pending::wait);
        let second = sums.next().expect("two layers")?;
        let first = sums.next().expect("two layers")?;
        model.apply(&first, &second);
        let mut loss = [loss];
        world.all_reduce_in_place(&mut loss, ReduceOp::Sum)?;
        if world.rank() == 0 && (step % 50 == 0 || step + 1 == STEPS) {
            println!("step {step:4}   mean error {:.6}", loss[0] / BATCH as f32);
        }
    }
    Ok(model)
}

/// Trains in this process alone.
fn train_alone() -> Result<Model, Error> {
    let mut model = Model::new();
    for step in 0..STEPS {
        let mut gradients = Vec::new();
        backward(&model, step, 0..BATCH, |gradient| {
            gradients.push(gradient);
            Ok(())
        })?;
        model.apply(&gradients[1], &gradients[0]);
    }
    Ok(model)
}

fn main() -> Result<(), Error> {
    let world = Communicator::from_env()?;
    assert!(
        BATCH.is_multiple_of(world.size()),
        "{BATCH} samples are not shared out evenly over {} ranks",
        world.size()
    );
    let model = train(&world)?;
    let alone = train_alone()?;
    let weights = |model: &Model| [&model.first[..], &model.second[..]].concat();
    let pairs = weights(&model).into_iter().zip(weights(&alone));
    let difference = pairs.map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
    // Everybody must have the very same weights.
    let mut bits: Vec<u32> = weights(&model).iter().map(|weight| weight.to_bits()).collect();
    let own = bits.clone();
    world.broadcast(&mut bits, 0)?;
    assert!(bits == own, "rank {} has other weights than rank 0", world.rank());
    if world.rank() == 0 {
        println!("largest difference of a weight from training in one process: {difference:e}");
        assert!(difference < 1e-4, "the weights are not those of one process");
        println!("{} ranks reached the weights that one process reaches", world.size());
    }
    Ok(())
}
