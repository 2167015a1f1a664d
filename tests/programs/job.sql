-- Run with: sqlite3 :memory: "create table size(n); insert into size values(400000)" ".read job.sql"
pragma temp_store = memory;
create table item(id integer primary key, word text, number integer, pad text);
with recursive c(i) as (select 1 union all select i + 1 from c where i < (select n from size))
insert into item
select i, printf('%08x', (i * 2654435761) % 4294967296), (i * 7919) % 1000, printf('%0120d', i * i) from c;
create index by_word on item(word);
create index by_number on item(number, word);
select count(*), sum(number), sum(length(pad)) from item;
select number, count(*), min(word), max(word) from item group by number order by 2 desc, 1 limit 20;
select count(*), sum(a.number * b.number)
    from item a join item b on b.word = printf('%08x', ((a.id + 1) * 2654435761) % 4294967296);
update item set pad = word || pad where number % 3 = 0;
delete from item where number % 7 = 0;
select count(*), sum(length(pad)), sum(id) from item;
select substr(word, 1, 2) w, count(*), sum(number) from item group by w order by w;
pragma integrity_check;
