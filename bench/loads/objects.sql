-- SPDX-License-Identifier: GPL-2.0
-- A load for benchmarks: make records in tables in memory, with an index, and replace half of them.
create table record (number integer primary key, name text, words text);
with recursive n(i) as (select 0 union all select i + 1 from n where i < 99999)
	insert into record select i, 'name of ' || i, hex(zeroblob(i % 97)) from n;
update record set words = hex(zeroblob(50)) where number % 2 = 0;
create index by_name on record (name);
select count(*), min(name) from record;
