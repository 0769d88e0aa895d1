-- SPDX-License-Identifier: GPL-2.0
-- A load for PostgreSQL: a sort that fits into the memory of its backend.
set work_mem = '256MB';
select count(*) from (select md5(i::text) as t from generate_series(1, 200000) i order by t offset 1) s;
