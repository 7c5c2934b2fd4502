-- What one worker does for all of them: who does it now, and until when it is theirs to do.
create table holdfast_rounds (
    name text primary key,
    worker text not null,
    until timestamptz not null
);
