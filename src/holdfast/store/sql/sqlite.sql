-- Holdfast's queries for SQLite: the schema's version and the clock.
-- The files beside this one hold the same names in the same order: review them with diff.
-- What differs throughout is said at the head of jobs/sql/sqlite.sql.

-- schema_create: make the configured schema, if one is configured.
-- Differs: SQLite has no schemas.
select 1;

-- schema_lock: let one migrator in at a time; freed when its transaction ends.
-- Differs: BEGIN IMMEDIATE has locked the file already.
select 1;

-- schema_patience: say how long a step of a migration waits for a table that another transaction holds.
-- Differs: BEGIN IMMEDIATE has waited already.
select 1;

-- schema_unlock: let the next migrator in.
-- Differs: the end of the transaction does it.
select 1;

-- meta_create: make the table that holds the schema version.
-- Differs: "without rowid", as every table of ours.
create table if not exists holdfast_meta (key text primary key, value text not null) without rowid;

-- meta_present: tell whether Holdfast's tables were ever made here.
-- Differs: SQLite's catalogue is a table.
select exists (select 1 from sqlite_master where type = 'table' and name = 'holdfast_meta');

-- version_read: read the schema version.
select value from holdfast_meta where key = 'schema_version';

-- version_write: record the schema version.
insert into holdfast_meta (key, value) values ('schema_version', :version)
on conflict (key) do update set value = excluded.value;

-- clock: read the database's time.
select :now;
