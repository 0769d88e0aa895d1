-- SPDX-License-Identifier: GPL-2.0
-- A load for PostgreSQL: a hash aggregate with 4 million groups that fits into its memory.
set work_mem = '2000MB';
set enable_sort = off;
select count(*), sum(n) from (select md5((i % 4000000)::text) as t, count(*) as n from generate_series(1, 6000000) i group by 1) s;
