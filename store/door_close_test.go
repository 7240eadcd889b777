package store_test

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"jpintel/store"
)

func TestCloseWaitsForAcceptedWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "jpintel.db")
		db := open(t, path, store.Options{Server: true})
		addNumbers(t, db)
		release := hold(db)
		answers := make(chan error, 4)
		for i := range 2 {
			go func() { answers <- db.Write(context.Background(), insert(i)) }()
			go func() { answers <- db.WriteBackground(context.Background(), insert(10+i)) }()
		}
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- db.Close() }()
		synctest.Wait()
		if err := db.Write(context.Background(), insert(20)); store.CodeOf(err) != store.CodeUnavailable {
			t.Errorf("a write after Close: %v, want code unavailable", err)
		}
		if len(closed) != 0 {
			t.Error("Close returned while a write was running")
		}
		release()
		for range cap(answers) {
			if err := <-answers; err != nil {
				t.Errorf("an accepted write: %v", err)
			}
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		db = open(t, path, store.Options{Server: true})
		defer shut(t, db)
		if got := numbers(t, db); !slices.Equal(got, []int{0, 1, 10, 11}) {
			t.Errorf("rows %v", got)
		}
	})
}

func TestCloseLosesNoAcknowledgedWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jpintel.db")
	db := open(t, path, store.Options{Server: true})
	addNumbers(t, db)
	var acknowledged []int
	for round := range 10 {
		var mu sync.Mutex
		var writers sync.WaitGroup
		started := make(chan struct{}, 8)
		for w := range 8 {
			writers.Go(func() {
				for i := 0; ; i++ {
					n := round<<20 | w<<16 | i
					err := db.Write(context.Background(), insert(n))
					if i == 0 {
						started <- struct{}{}
					}
					if err != nil {
						if store.CodeOf(err) != store.CodeUnavailable {
							t.Errorf("a write during Close: %v", err)
						}
						return
					}
					mu.Lock()
					acknowledged = append(acknowledged, n)
					mu.Unlock()
				}
			})
		}
		for range 8 {
			<-started
		}
		var closers sync.WaitGroup
		for range 3 { // from any goroutine, and more than once
			closers.Go(func() {
				if err := db.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		}
		writers.Wait()
		closers.Wait()
		db = open(t, path, store.Options{Server: true})
		slices.Sort(acknowledged)
		if got := numbers(t, db); !slices.Equal(got, acknowledged) {
			t.Fatalf("round %d: %d rows in the file, %d acknowledged", round, len(got), len(acknowledged))
		}
	}
	shut(t, db)
}
