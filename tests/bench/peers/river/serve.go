// The Go twin of holdfast.bench.serve: one contestant in a process of its own, driven by JSON lines.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"sync"
	"syscall"
	"time"
)

const look = 5 * time.Millisecond

// job is the payload of both kinds: with a time at which it set out, or without.
type job struct {
	Order  int     `json:"order"`
	Amount float64 `json:"amount"`
	Sent   int64   `json:"sent,omitempty"`
}

// queue is what a peer says of itself: how to add jobs and how to work; the rest is made of it.
type queue interface {
	install(ctx context.Context) error
	clear(ctx context.Context) error
	add(ctx context.Context, jobs []job) error
	serve(ctx context.Context, mode string) error
	rest(ctx context.Context) error
	unfinished(ctx context.Context) (int, error)
}

// tally counts what came, on whatever goroutine it did.
type tally struct {
	sync.Mutex
	left   int
	over   chan struct{}
	stamps []float64
}

func (t *tally) came(one job) {
	now := time.Now().UnixNano()
	t.Lock()
	defer t.Unlock()
	if one.Sent != 0 {
		t.stamps = append(t.stamps, float64(now-one.Sent)/1e6)
		return
	}
	if t.left--; t.left == 0 {
		close(t.over)
	}
}

func (t *tally) count() int {
	t.Lock()
	defer t.Unlock()
	return len(t.stamps)
}

type request struct {
	Do      string     `json:"do"`
	URL     string     `json:"url"`
	Count   int        `json:"count"`
	PerCall int        `json:"per_call"`
	Busy    bool       `json:"busy"`
	Gap     [2]float64 `json:"gap"`
	Seconds float64    `json:"seconds"`
}

type contestant struct {
	queue
	*tally
}

func (c contestant) answer(ctx context.Context, asked request) (any, error) {
	switch asked.Do {
	case "install":
		return nil, c.install(ctx)
	case "uninstall": // The database is dropped as a whole.
		return nil, nil
	case "clear":
		return nil, c.clear(ctx)
	case "aenqueue_one":
		return nil, c.enqueue(ctx, asked.Count, 1)
	case "enqueue_many":
		return nil, c.enqueue(ctx, asked.Count, asked.PerCall)
	case "drain":
		return c.drain(ctx, asked.Count)
	case "unfinished":
		return c.unfinished(ctx)
	case "work":
		return nil, c.work(ctx, asked.Busy)
	case "rest":
		return nil, c.rest(ctx)
	case "produce":
		return nil, c.produce(ctx, asked)
	case "received":
		for c.count() < asked.Count {
			time.Sleep(4 * look)
		}
		return c.stamps, c.rest(ctx)
	case "pause":
		time.Sleep(seconds(asked.Seconds))
		return nil, nil
	case "idle":
		return idle(seconds(asked.Seconds)), nil
	}
	return nil, fmt.Errorf("%q is not known here", asked.Do)
}

func (c contestant) enqueue(ctx context.Context, count, perCall int) error {
	for start := 0; start < count; start += perCall {
		jobs := make([]job, min(perCall, count-start))
		for place := range jobs {
			jobs[place] = job{Order: start + place, Amount: 12.5}
		}
		if err := c.add(ctx, jobs); err != nil {
			return err
		}
	}
	return nil
}

// drain works until every job was handled and the database shows none unfinished.
func (c contestant) drain(ctx context.Context, count int) (float64, error) {
	c.left, c.over = count, make(chan struct{})
	began := time.Now()
	if err := c.serve(ctx, "drain"); err != nil {
		return 0, err
	}
	<-c.over
	for {
		ended := time.Now() // Read before the query: what it sees is not older.
		left, err := c.unfinished(ctx)
		if err != nil {
			return 0, err
		}
		if left == 0 {
			return ended.Sub(began).Seconds(), c.rest(ctx)
		}
		time.Sleep(look)
	}
}

func (c contestant) work(ctx context.Context, busy bool) error {
	c.stamps = nil
	mode := "idle"
	if busy {
		mode = "flow"
	}
	defer time.Sleep(500 * time.Millisecond)
	return c.serve(ctx, mode)
}

func (c contestant) produce(ctx context.Context, asked request) error {
	due := time.Now()
	for sent := 0; sent < asked.Count; sent += asked.PerCall {
		due = due.Add(seconds(asked.Gap[0] + rand.Float64()*(asked.Gap[1]-asked.Gap[0])))
		time.Sleep(time.Until(due))
		jobs, now := make([]job, asked.PerCall), time.Now().UnixNano()
		for place := range jobs {
			jobs[place] = job{Amount: 12.5, Sent: now}
		}
		if err := c.add(ctx, jobs); err != nil {
			return err
		}
	}
	return nil
}

func idle(length time.Duration) map[string]float64 {
	before, began := cpu(), time.Now()
	time.Sleep(length)
	percent := 100 * (cpu() - before).Seconds() / time.Since(began).Seconds()
	return map[string]float64{"cpu_percent": percent, "rss_mb": rss()}
}

func seconds(number float64) time.Duration {
	return time.Duration(number * float64(time.Second))
}

func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// rss is the memory of this process that is in RAM, in megabytes.
func rss() float64 {
	var all, resident int
	text, _ := os.ReadFile("/proc/self/statm")
	fmt.Sscan(string(text), &all, &resident)
	return float64(resident*os.Getpagesize()) / 1e6
}

// run answers requests until there are no more; the first line names the database.
func run(open func(ctx context.Context, url string, counting *tally) (queue, error)) {
	ctx, out := context.Background(), json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	var here *contestant
	for lines.Scan() {
		var asked request
		began := time.Now()
		value, err := any("ready"), json.Unmarshal(lines.Bytes(), &asked)
		if err == nil && here == nil {
			counting := &tally{}
			var opened queue
			if opened, err = open(ctx, asked.URL, counting); err == nil {
				here = &contestant{opened, counting}
			}
		} else if err == nil {
			value, err = here.answer(ctx, asked)
		}
		answer := map[string]any{"value": value, "seconds": time.Since(began).Seconds()}
		if err != nil {
			answer = map[string]any{"error": fmt.Sprintf("%s: %v", asked.Do, err)}
		}
		if err := out.Encode(answer); err != nil {
			panic(err)
		}
	}
}
