//! What is known of the policies without this simulator.

use super::*;
use machine::Page;

const MEMORY: u32 = 4096;

fn outcome(order: Order, trace: &Trace, signal: Signal) -> Outcome {
    let mut policy = Arrivals::new(order, trace.pages, 1);
    replay(&trace.accesses, trace.pages, trace.memory, signal, &mut policy)
}

fn made(name: &str) -> Trace {
    let traces = trace::made(MEMORY, MEMORY as usize * 100, 1);
    traces.into_iter().find(|trace| trace.name == name).expect("a trace of that name")
}

fn faults(accesses: &[Page], memory: u32, signal: Signal, policy: &mut dyn Policy) -> u64 {
    let pages = accesses.iter().max().unwrap() + 1;
    replay(accesses, pages, memory, signal, policy).faults
}

#[test]
fn belady_s_own_anomaly() {
    // Belady, Nelson, Shedler 1969: more memory, more faults under FIFO: 9 and 10, of which 5 are first
    // touches.
    let accesses = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];
    assert_eq!(faults(&accesses, 3, Signal::Faults, &mut Clock::default()), 4);
    assert_eq!(faults(&accesses, 4, Signal::Faults, &mut Clock::default()), 5);
    // By hand.
    assert_eq!(opt::opt(&accesses, 6, 3).faults, 2);
    assert_eq!(opt::opt(&accesses, 6, 4).faults, 1);
}

#[test]
fn a_loop_has_no_hit_by_arrival_and_two_thirds_of_the_best_by_duel() {
    let (near, far) = (made("loop 1.2"), made("loop 2"));
    for (trace, best) in [(&near, 0.2), (&far, 0.5)] {
        let touches = (trace.accesses.len() as u32 - trace.pages) as f64;
        let share = |order| outcome(order, trace, Signal::Faults).faults as f64 / touches;
        assert_eq!(share(Order::Arrival), 1.0, "{}", trace.name);
        let duel = share(Order::Duel);
        assert!(duel > best && duel < 1.0 - (1.0 - best) * 0.66, "{}: {duel}", trace.name);
    }
}

#[test]
fn the_duel_is_never_far_behind_arrival() {
    for trace in trace::made(MEMORY, MEMORY as usize * 100, 1) {
        let [old, new] =
            [Order::Arrival, Order::Duel].map(|order| outcome(order, &trace, Signal::Faults).virtual_ns);
        assert!(new as f64 <= old as f64 * 1.05, "{}: {old} ns, {new} ns", trace.name);
    }
}

#[test]
fn no_policy_beats_the_bound() {
    for trace in trace::made(1024, 30_000, 3) {
        let bound = opt::opt(&trace.accesses, trace.pages, trace.memory);
        for entry in POLICIES {
            let Some(make) = entry.make else { continue };
            for signal in Signal::ALL {
                let mut policy = make(trace.pages, 1);
                let outcome = replay(&trace.accesses, trace.pages, trace.memory, signal, policy.as_mut());
                assert!(outcome.faults >= bound.faults, "{} under {}", entry.name, trace.name);
                assert_eq!(outcome.fresh, bound.fresh);
            }
        }
    }
}

/// Independent uses: FIFO and random replacement have the same hit ratio (Gelenbe 1973), and CLOCK more.
#[test]
fn independent_uses() {
    let trace = made("zipf 0.8");
    let run = |signal, policy: &mut dyn Policy| {
        replay(&trace.accesses, trace.pages, trace.memory, signal, policy).faults as f64
    };
    let fifo = run(Signal::Faults, &mut Clock::default());
    let random = run(Signal::Faults, &mut AnyPage::new(1));
    let clock = run(Signal::Bits, &mut Clock::default());
    assert!((fifo / random - 1.0).abs() < 0.02, "{fifo} and {random}");
    assert!(clock < 0.9 * fifo, "{clock} and {fifo}");
}

/// A page that stands by and is touched is known to be used, and so is its block; nothing else is.
#[test]
fn soft_faults_tell() {
    let trace = made("zipf 1.0");
    let soft = |signal| outcome(Order::Arrival, &trace, signal).soft_faults;
    assert_eq!((soft(Signal::Faults), soft(Signal::Bits)), (0, 0));
    let (sampled, all) = (soft(Signal::Sampled), soft(Signal::Standby));
    assert!(sampled > 0 && (8 * sampled..32 * sampled).contains(&all), "{sampled} of {all}");
}

#[test]
fn means() {
    assert_eq!(geometric_mean([4.0, 1.0].into_iter()), 2.0);
    assert!((geometric_mean([0.5, 0.9, 1.0, 1.7].into_iter()) - 0.765f64.powf(0.25)).abs() < 1e-12);
}
