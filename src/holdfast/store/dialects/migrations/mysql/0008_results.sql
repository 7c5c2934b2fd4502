-- What a done job gave, for those who waited for it when it ended, where its queue keeps nothing of done jobs; deleted after some
-- minutes.
-- Differs: DDL commits by itself, so the statement may be run again.
create table if not exists holdfast_results (
    job_id char(36) character set ascii collate ascii_bin not null primary key,
    at datetime(6) not null,
    queue varchar(100) character set utf8mb4 collate holdfast_text not null,
    kind varchar(100) character set utf8mb4 collate holdfast_text not null,
    result longtext character set utf8mb4 collate holdfast_text,
    index holdfast_results_at_idx (at)
) engine = InnoDB row_format = dynamic;
