-- Calls that wait for the last of them: which job each key names, and which call said last what that job is.
-- A row is worth nothing once its job was claimed; it stays for a while, so that a repeated call finds itself.
create table if not exists holdfast_debounces (
    kind varchar(100) character set utf8mb4 collate holdfast_text not null,
    `key` varchar(200) character set utf8mb4 collate holdfast_text not null,
    job_id char(36) character set ascii collate ascii_bin not null,
    latest char(36) character set ascii collate ascii_bin not null,
    changed_at datetime(6) not null,
    primary key (kind, `key`),
    index holdfast_debounces_age_idx (changed_at)
) engine = InnoDB row_format = dynamic;

-- Differs: a scope is the kind, of 100 characters at most, or the kind with a word behind it. A longer column of this size
-- is a change of the definition alone.
alter table holdfast_keys modify scope varchar(120) character set utf8mb4 collate holdfast_text not null;
