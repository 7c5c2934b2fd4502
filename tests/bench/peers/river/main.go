// River on pgx: 2,000 workers that fetch every millisecond, the fastest setting found; idle, the 100 workers of its
// documentation and a poll each second. By default its fetches are at least 100 ms apart; a millisecond, the least that
// it takes, shows its latency at its best.
package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const live = "select count(*) from river_job where state not in ('completed', 'cancelled', 'discarded')"

var quiet = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

func (job) Kind() string { return "noop" }

type noop struct {
	river.WorkerDefaults[job]
	counting *tally
}

func (n *noop) Work(_ context.Context, one *river.Job[job]) error {
	n.counting.came(one.Args)
	return nil
}

type peer struct {
	pool     *pgxpool.Pool
	adding   *river.Client[pgx.Tx]
	working  *river.Client[pgx.Tx]
	counting *tally
}

func open(ctx context.Context, url string, counting *tally) (queue, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	// A client that only adds has the cooldown, too: it notifies no oftener.
	adding, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet, FetchCooldown: time.Millisecond})
	return &peer{pool: pool, adding: adding, counting: counting}, err
}

func (p *peer) install(ctx context.Context) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(p.pool), nil)
	if err != nil {
		return err
	}
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

func (p *peer) clear(ctx context.Context) error {
	_, err := p.pool.Exec(ctx, "truncate river_job")
	return err
}

func (p *peer) add(ctx context.Context, jobs []job) error {
	if len(jobs) == 1 {
		_, err := p.adding.Insert(ctx, jobs[0], nil)
		return err
	}
	many := make([]river.InsertManyParams, len(jobs))
	for place, one := range jobs {
		many[place].Args = one
	}
	_, err := p.adding.InsertManyFast(ctx, many)
	return err
}

func (p *peer) serve(ctx context.Context, mode string) (err error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &noop{counting: p.counting})
	slots, poll := 2000, time.Millisecond
	if mode == "idle" {
		slots, poll = 100, time.Second
	}
	p.working, err = river.NewClient(riverpgxv5.New(p.pool), &river.Config{
		FetchCooldown:     time.Millisecond,
		FetchPollInterval: poll,
		Logger:            quiet,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: slots}},
		Workers:           workers,
	})
	if err != nil {
		return err
	}
	return p.working.Start(ctx)
}

func (p *peer) rest(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return p.working.Stop(ctx)
}

func (p *peer) unfinished(ctx context.Context) (left int, err error) {
	err = p.pool.QueryRow(ctx, live).Scan(&left)
	return left, err
}

func main() {
	run(open)
}
