//! Tasks, locks and atomics in virtual time: who runs when, what it costs, and that it is always the same.

use memspill_vcpu::{
    self as vcpu, AtomicU64, Machine, Mutex, Ordering, Preemption, RwLock, Signal, Waiting, World, cost,
};
use std::cell::Cell;
use std::rc::Rc;

fn world() -> World {
    World::install(&Machine { cpus_per_socket: 2, preemption: None, waiting: Waiting::Sleeps })
}

/// Each CPU runs `body(cpu)`. Returns the time at which the last one ended.
fn on_cpus(cpus: u32, body: impl Fn(u32) + Clone + 'static) -> u64 {
    for cpu in 0..cpus {
        let body = body.clone();
        vcpu::spawn(cpu, format!("CPU {cpu}"), move || body(cpu));
    }
    vcpu::run()
}

#[test]
fn the_earliest_runs_first() {
    let _world = world();
    let order = Rc::new(Mutex::new(Vec::new()));
    let seen = order.clone();
    on_cpus(3, move |cpu| {
        vcpu::step(u64::from(3 - cpu) * 1000);
        seen.lock().unwrap().push(cpu);
    });
    assert_eq!(*order.lock().unwrap(), [2, 1, 0]);
}

#[test]
fn a_lock_makes_its_holders_follow_one_another() {
    const HELD_NS: u64 = 10_000;
    let _world = world();
    let lock = Rc::new(Mutex::new(0));
    let used = lock.clone();
    let end = on_cpus(8, move |_| {
        for _ in 0..10 {
            let mut count = used.lock().unwrap();
            let before = *count;
            vcpu::step(HELD_NS);
            *count = before + 1;
        }
    });
    assert_eq!(*lock.lock().unwrap(), 80, "nobody came between the load and the store");
    assert!(end >= 80 * HELD_NS, "{end} ns for 80 holds");
    assert!(
        end < 80 * (HELD_NS + cost::WAKE_LATENCY_NS + 4 * cost::WAKE_NS),
        "the lock did not stand still: {end}"
    );
}

#[test]
fn readers_hold_a_lock_together_and_writers_alone() {
    const HELD_NS: u64 = 100_000;
    let _world = world();
    let lock = Rc::new(RwLock::new(0));
    let readers = lock.clone();
    let end = on_cpus(8, move |_| {
        let _pass = readers.read().unwrap();
        vcpu::step(HELD_NS);
    });
    assert!(end < 2 * HELD_NS, "{end}");
    let writers = lock.clone();
    let end = on_cpus(8, move |_| {
        let mut value = writers.write().unwrap();
        vcpu::step(HELD_NS);
        *value += 1;
    });
    assert!(end >= 8 * HELD_NS && *lock.read().unwrap() == 8, "{end}");
}

#[test]
fn a_shared_counter_does_not_scale_and_counters_apart_do() {
    const ADDS: u64 = 1000;
    let _world = world();
    let shared = Rc::new(AtomicU64::new(0));
    let counter = shared.clone();
    let end = on_cpus(2, move |_| (0..ADDS).for_each(|_| _ = counter.fetch_add(1, Ordering::Relaxed)));
    assert_eq!(shared.load(Ordering::Relaxed), 2 * ADDS);
    assert!(end >= 2 * (ADDS - 1) * cost::LINE_SAME_SOCKET_NS, "the line went back and forth: {end}");
    let own = Rc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let end_apart =
        on_cpus(2, move |cpu| (0..ADDS).for_each(|_| _ = own[cpu as usize].fetch_add(1, Ordering::Relaxed)));
    assert!(end_apart <= ADDS * cost::RMW_NS + 2 * cost::DRAM_NS, "{end_apart}");
}

#[test]
fn atomics_made_by_one_expression_share_lines() {
    let world = world();
    let made: Rc<Vec<AtomicU64>> = Rc::new((0..16).map(|_| AtomicU64::new(0)).collect());
    let used = made.clone();
    on_cpus(2, move |cpu| (0..100).for_each(|_| _ = used[cpu as usize].fetch_add(1, Ordering::Relaxed)));
    let close = world.profile().report()[0].counts.lost_ns();
    let used = made.clone();
    on_cpus(2, move |cpu| (0..100).for_each(|_| _ = used[cpu as usize * 8].fetch_add(1, Ordering::Relaxed)));
    let apart = world.profile().report()[0].counts.lost_ns();
    assert!(apart * 10 < close, "{apart} and {close}");
}

#[test]
fn a_signal_is_not_slept_through() {
    let _world = world();
    let signal = Rc::new(Signal::default());
    let end = on_cpus(2, move |cpu| {
        if cpu == 0 {
            let seen = signal.count();
            vcpu::step(1_000_000);
            signal.wait(seen);
        } else {
            vcpu::step(500);
            signal.wake_all();
        }
    });
    assert_eq!(end, 1_000_000);
}

#[test]
#[should_panic(expected = "nobody can run, and these wait: CPU 0, CPU 1")]
fn who_waits_crosswise_is_named() {
    let _world = world();
    // Leaked, as the locks of a thread that hangs are.
    let locks: &'static [Mutex<()>; 2] = Box::leak(Box::new([Mutex::new(()), Mutex::new(())]));
    on_cpus(2, move |cpu| {
        let first = locks[cpu as usize].lock().unwrap();
        vcpu::step(100_000);
        let second = locks[1 - cpu as usize].lock().unwrap();
        drop((first, second));
    });
}

#[test]
fn preemption_changes_the_history_and_a_seed_repeats_it() {
    let history = |seed| {
        let preemption = Some(Preemption { seed, one_in: 8, longest_ns: 10_000 });
        let _world = World::install(&Machine { cpus_per_socket: 2, preemption, waiting: Waiting::Sleeps });
        let order = Rc::new(Mutex::new(Vec::new()));
        let seen = order.clone();
        let end = on_cpus(4, move |cpu| (0..20).for_each(|_| seen.lock().unwrap().push(cpu)));
        let order = order.lock().unwrap().clone();
        (order, end)
    };
    assert_eq!(history(1), history(1));
    assert_ne!(history(1), history(2));
}

/// `tasks` of `body` on one CPU. Returns when the last one ended, and how long they had the CPU.
fn on_one_cpu(tasks: u32, body: impl Fn(u32) + Clone + 'static) -> (u64, u64) {
    let had = Rc::new(std::cell::Cell::new(0));
    for task in 0..tasks {
        let (body, had) = (body.clone(), had.clone());
        vcpu::spawn(0, format!("task {task}"), move || {
            body(task);
            had.set(vcpu::cpu_time());
        });
    }
    (vcpu::run(), had.get())
}

#[test]
fn tasks_of_one_cpu_take_turns() {
    const WORK_NS: u64 = 20_000_000;
    let _world = world();
    let ends = Rc::new(std::cell::RefCell::new(Vec::new()));
    let seen = ends.clone();
    let (end, _) = on_one_cpu(4, move |_| {
        (0..WORK_NS / 1000).for_each(|_| vcpu::step(1000));
        seen.borrow_mut().push(vcpu::now());
    });
    let switches = end - 4 * WORK_NS;
    assert!(switches > 0 && switches < WORK_NS / 100, "four take four times as long, and switch: {end}");
    let first = ends.borrow()[0];
    assert!(first > 3 * WORK_NS, "they share it alike: the first of four has ended at {first}");
}

#[test]
fn a_task_that_sleeps_leaves_its_cpu_to_others_and_gets_it_back_soon() {
    const WORK_NS: u64 = 20_000_000;
    let _world = world();
    let late = Rc::new(std::cell::Cell::new(0));
    let latest = late.clone();
    let (end, had) = on_one_cpu(2, move |task| match task {
        0 => (0..WORK_NS / 1000).for_each(|_| vcpu::step(1000)),
        _ => (0..100).for_each(|_| {
            let until = vcpu::now() + 100_000;
            vcpu::sleep_until(until);
            latest.set(latest.get().max(vcpu::now() - until));
        }),
    });
    assert!(end < WORK_NS + WORK_NS / 50, "sleeping takes no time of the other one's: {end}");
    assert!(had >= WORK_NS && had <= end, "{had} of {end}");
    assert!(late.get() < 10_000, "it was woken {} ns late", late.get());
}

#[test]
fn who_waits_for_a_lock_spins_for_a_while_and_then_leaves_the_cpu() {
    let _world = world();
    let lock = Rc::new(Mutex::new(()));
    let (holder, waiter) = (lock.clone(), lock.clone());
    vcpu::spawn(1, "holder".into(), move || {
        let _held = holder.lock().unwrap();
        vcpu::step(1_000_000);
    });
    let worked_at = Rc::new(std::cell::Cell::new(0));
    let noted = worked_at.clone();
    vcpu::spawn(0, "waiter".into(), move || {
        vcpu::step(100);
        drop(waiter.lock().unwrap());
    });
    vcpu::spawn(0, "worker".into(), move || {
        vcpu::step(1000);
        noted.set(vcpu::now());
    });
    vcpu::run();
    let began = worked_at.get() - 1000;
    assert!((cost::SPIN_NS..2 * cost::SPIN_NS).contains(&began), "the other task began at {began}");
}

#[test]
fn a_task_that_floats_goes_where_nothing_runs() {
    const WORK_NS: u64 = 10_000_000;
    let _world = world();
    let work = || (0..WORK_NS / 1000).for_each(|_| vcpu::step(1000));
    vcpu::spawn(0, "stays".into(), work);
    vcpu::spawn(1, "has soon ended".into(), || vcpu::step(1000));
    vcpu::spawn_floating(0, "floats".into(), work);
    let end = vcpu::run();
    assert!(end < WORK_NS + WORK_NS / 10, "both worked side by side: {end}");
}

#[test]
fn who_holds_a_spinlock_keeps_its_cpu_and_who_waits_has_it_at_once() {
    const MS: u64 = 1_000_000;
    let had_at = |waiting| {
        let _world = World::install(&Machine { cpus_per_socket: 2, preemption: None, waiting });
        let (lock, had_at) = (Rc::new(Mutex::new(())), Rc::new(Cell::new(0)));
        let held = lock.clone();
        vcpu::spawn(0, "holder".into(), move || {
            let _held = held.lock().unwrap();
            (0..8).for_each(|_| vcpu::step(MS));
        });
        vcpu::spawn(0, "other".into(), || (0..20).for_each(|_| vcpu::step(MS)));
        let (wanted, noted) = (lock.clone(), had_at.clone());
        vcpu::spawn(1, "waiter".into(), move || {
            vcpu::step(1000);
            drop(wanted.lock().unwrap());
            noted.set(vcpu::now());
        });
        vcpu::run();
        had_at.get()
    };
    let spins = had_at(Waiting::Spins);
    assert!((8 * MS..8 * MS + 1000).contains(&spins), "{spins}");
    let sleeps = had_at(Waiting::Sleeps);
    assert!(sleeps > 10 * MS, "the other task had the CPU meanwhile: {sleeps}");
}
