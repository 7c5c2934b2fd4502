-- Remote steps that runs wait for: which step was sent where, until its result is in the journal or nobody wants it.
-- Differs: DDL commits by itself, so each statement may be run again; see 0002.
create table if not exists holdfast_dispatches (
    run_id char(36) character set ascii collate ascii_bin not null,
    -- With the run, the step's id for those who do it: the place of its first dispatch in the journal.
    seq integer not null,
    `key` varchar(300) character set utf8mb4 collate holdfast_text not null,
    engine varchar(100) character set utf8mb4 collate holdfast_text not null,
    name varchar(191) character set utf8mb4 collate holdfast_text not null,
    grp varchar(191) character set utf8mb4 collate holdfast_text not null,
    input longtext character set utf8mb4 collate holdfast_text not null,
    attempt integer not null,
    -- How often it was found lost and sent again, and whether somebody asked for it to be sent again.
    lost integer not null,
    again smallint not null,
    sent_at datetime(6) not null,
    -- When somebody looks whether it is lost; for an engine that sends messages, when it is to be sent.
    look_at datetime(6),
    primary key (run_id, seq),
    index holdfast_dispatches_look_idx (engine, look_at)
) engine = InnoDB row_format = dynamic;
