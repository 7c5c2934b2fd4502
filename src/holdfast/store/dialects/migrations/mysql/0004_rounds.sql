-- What one worker does for all of them: who does it now, and until when it is theirs to do.
create table if not exists holdfast_rounds (
    name varchar(100) character set utf8mb4 collate holdfast_text not null primary key,
    worker varchar(500) character set utf8mb4 collate holdfast_text not null,
    until datetime(6) not null
) engine = InnoDB row_format = dynamic;
