//! Shared memory in the pager's part of a simulation, as `crates/pager` has it (`shared.rs`,
//! `faults/shared.rs`).
//!
//! A fault goes to the object's page table, by whichever process it comes; it is noted before the page's word
//! is looked at. An object gives pages when it is adopted, and ends with its last mapping.

use crate::host::{Host, Process, Worker};
use crate::object::{Object, SharedSpace};
use crate::target::Touch;
use memspill_engine_sim::backing::QueueId;
use memspill_engine_sim::fill::Fault;
use memspill_engine_sim::units::{CpuId, Vpn};
use memspill_vcpu::{self as vcpu, cost};
use std::rc::Rc;
use std::sync::Arc;

impl Host {
    pub fn add_object(&self, object: Arc<Object>) -> Rc<SharedSpace> {
        let space = self.new_space(object.clone());
        space.set_aside(true, &[]);
        self.engine.add_space(space.clone());
        let shared = Rc::new(SharedSpace::new(object, space));
        self.objects.borrow_mut().push(shared.clone());
        shared
    }

    /// The process has it mapped no more. The last one ends it.
    pub fn unmap_object(&self, cpu: CpuId, shared: &Rc<SharedSpace>, process: &Process) {
        if !shared.object.unmap(process.target.mapper()) {
            return;
        }
        self.objects.borrow_mut().retain(|other| !Rc::ptr_eq(other, shared));
        {
            let _held = shared.hold_pages();
            shared.space.release(self.engine.swap(), cpu);
        }
        self.engine.remove_space(&shared.space);
        self.wake_waiting_for_room();
    }

    pub fn unmap_all_objects(&self, cpu: CpuId, process: &Process) {
        let objects = self.objects.borrow().clone();
        objects.iter().for_each(|shared| self.unmap_object(cpu, shared, process));
    }

    /// MADV_REMOVE: by the pager when the agent calls, and then by the kernel.
    pub fn punch(&self, cpu: CpuId, shared: &SharedSpace, from: u64, to: u64) {
        {
            let _held = shared.hold_pages();
            shared.space.unmap(self.engine.swap(), cpu, Vpn(from), Vpn(to));
            shared.object.punch(from, to);
        }
        self.wake_waiting_for_room();
        vcpu::step(cost::WAKE_LATENCY_NS);
        shared.object.punch_again(from, to);
    }

    /// MADV_PAGEOUT, and `memspill ctl pageout`.
    pub fn page_out_object(&self, cpu: CpuId, queue: QueueId, shared: &SharedSpace, from: u64, to: u64) {
        let mut at = Vpn(from);
        while at < Vpn(to) && !shared.space.is_aside() {
            shared.take_batch(&self.engine, cpu, queue, |engine| {
                let (shrunk, write_out, next) = engine.pageout(cpu, &shared.space, at, Vpn(to));
                at = next;
                (shrunk, write_out)
            });
        }
        self.wake_waiting_for_room();
    }
}

impl Worker {
    /// Access a page of an object through the process's mapping, with all that comes of it.
    pub fn access_object(
        &mut self,
        process: &Rc<Process>,
        shared: &SharedSpace,
        page: u64,
        write: Option<u64>,
    ) -> Touch {
        let (object, mapper) = (&shared.object, process.target.mapper());
        loop {
            vcpu::step(cost::ACCESS_NS);
            match object.look(mapper, page, write) {
                Touch::Missing => {}
                met => return met,
            }
            // A fill may come before the thread waits.
            vcpu::step(cost::FAULT_NS);
            object.send(mapper, page);
            self.read_messages(process);
            object.note(page, mapper);
            let fault = Fault { vpn: Vpn(page), write: write.is_some(), urgent: false, favoured: false };
            self.serve_here(process, &shared.space, fault);
            object.wait();
        }
    }
}
