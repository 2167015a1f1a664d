// What tests/attach.sh attaches to: node attached.js MIB. Buffers and objects with checksums, files that its
// thread pool reads, workers' memory and garbage. SIGTERM ends it: `right`.
const crypto = require('crypto');
const fs = require('fs');
const blocks = Number(process.argv[2]);
const sum = (block) => crypto.createHash('md5').update(block).digest('hex');
const list = [];
const table = new Map();
for (let i = 0; i < blocks; i++) {
  const block = Buffer.alloc(1 << 20, `block ${i} `);
  crypto.randomFillSync(block, 0, 1 << 19);
  list.push({ block, sum: sum(block) });
  for (let j = 0; j < 500; j++) table.set(`${i}-${j}`, { i, j, text: 'x'.repeat(j % 40) + i });
}
let rounds = 0;
let ended = false;
const fail = (what) => { console.log('WRONG', what); process.exit(1); };
process.on('SIGTERM', () => { ended = true; });
function round() {
  for (const [at, one] of list.entries()) {
    if (sum(one.block) !== one.sum) fail(`block ${at} in round ${rounds}`);
    if ((at + rounds) % 3 === 0) {
      one.block = Buffer.alloc(1 << 20, `block ${at} of ${rounds} `);
      crypto.randomFillSync(one.block, 0, 1 << 19);
      one.sum = sum(one.block);
    }
  }
  for (const [name, { i, j, text }] of table) {
    if (name !== `${i}-${j}` || text !== 'x'.repeat(j % 40) + i) fail(name);
  }
  const { block } = list[rounds % blocks];
  fs.open('/dev/zero', 'r', (e, fd) => {
    if (e) fail(e);
    fs.read(fd, block, 0, block.length, 0, (e2, n) => {
      if (e2 || n !== block.length || block.some((byte) => byte !== 0)) fail(e2 || 'a read of zeros');
      list[rounds % blocks].sum = sum(block);
      fs.closeSync(fd);
      rounds += 1;
      console.log('round', rounds);
      if (ended) { console.log('right', rounds); process.exit(0); }
      setTimeout(round, 10);
    });
  });
}
round();
