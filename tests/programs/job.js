// Maps, strings, typed arrays and garbage: node job.js ROUNDS
const crypto = require('crypto');
const hash = crypto.createHash('md5');
let seed = 1;
const random = () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0);
const table = new Map();
const arrays = [];
for (let round = 0; round < Number(process.argv[2]); round++) {
  for (let i = 0; i < 40000; i++) {
    table.set(random(), { i, text: 'x'.repeat(i % 40) + random(), list: [i, round] });
  }
  const array = new Float64Array(1 << 18);
  for (let i = 0; i < array.length; i++) array[i] = random();
  arrays.push(array);
  arrays[random() % arrays.length].sort();
  const keys = [...table.keys()].sort((a, b) => a - b);
  for (let i = 0; i < keys.length; i += 11) {
    hash.update(JSON.stringify(table.get(keys[i])));
    if (i % 3 === 0) table.delete(keys[i]);
  }
}
for (const array of arrays) hash.update(Buffer.from(array.buffer));
console.log(table.size, hash.digest('hex'));
