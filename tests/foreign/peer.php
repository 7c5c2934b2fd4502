<?php
// A PHP program on the queue tables, written for these tests from the contract alone, with plain PDO.
//   php peer.php <dsn> <user> <command> <json>      prints one JSON value
// Commands: schema, publish, reserve, ack, release, dead, replay, work.
declare(strict_types=1);

[, $dsn, $user, $command, $json] = $argv + [4 => '{}'];
$say = json_decode($json, true, 512, JSON_THROW_ON_ERROR);
date_default_timezone_set($say['timezone'] ?? 'UTC');

final class Peer
{
    private const FLAGS = JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE | JSON_THROW_ON_ERROR;

    public function __construct(private PDO $pdo, private int $retryAfter = 90) {}

    private static function at(int $offset = 0): string
    {
        return date('Y-m-d H:i:s', time() + $offset);
    }

    public function schema(): bool
    {
        $lite = $this->pdo->getAttribute(PDO::ATTR_DRIVER_NAME) === 'sqlite';
        $id = $lite ? 'INTEGER PRIMARY KEY AUTOINCREMENT' : 'BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY';
        $end = $lite ? ')' : ') ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_unicode_ci';
        $common = "id $id, queue VARCHAR(255) NOT NULL, urn VARCHAR(255) NOT NULL, trace_id VARCHAR(64) NULL, "
            . 'attempts INT NOT NULL DEFAULT 0, payload TEXT NOT NULL, ';
        $index = $lite ? '' : ', KEY jobs_reserve_idx (queue, available_at, reserved_at)';
        $this->pdo->exec("CREATE TABLE IF NOT EXISTS jobs ($common available_at DATETIME NOT NULL, reserved_at DATETIME NULL, created_at DATETIME NOT NULL$index$end");
        if ($lite) {
            $this->pdo->exec('CREATE INDEX IF NOT EXISTS jobs_reserve_idx ON jobs (queue, available_at, reserved_at)');
        }
        $this->pdo->exec("CREATE TABLE IF NOT EXISTS jobs_failed ($common reason VARCHAR(64) NOT NULL, failed_at DATETIME NOT NULL, created_at DATETIME NOT NULL$end");
        return true;
    }

    public function publish(string $urn, array $data, string $queue = 'default', int $delay = 0): int
    {
        $meta = ['id' => bin2hex(random_bytes(16)), 'queue' => $queue, 'lang' => 'php', 'schema_version' => 1,
            'created_at' => (int) (microtime(true) * 1000)];
        return $this->insert(['job' => $urn, 'trace_id' => bin2hex(random_bytes(16)), 'data' => $data, 'meta' => $meta, 'attempts' => 0], $queue, $delay);
    }

    private function insert(array $envelope, string $queue, int $delay = 0): int
    {
        $this->pdo->prepare('INSERT INTO jobs (queue, urn, trace_id, attempts, payload, available_at, reserved_at, created_at) VALUES (?, ?, ?, ?, ?, ?, NULL, ?)')
            ->execute([$queue, $envelope['job'] ?? $envelope['urn'], $envelope['trace_id'], $envelope['attempts'],
                json_encode($envelope, self::FLAGS), self::at($delay), self::at()]);
        return (int) $this->pdo->lastInsertId();
    }

    public function reserve(string $queue = 'default'): ?array
    {
        $now = self::at();
        $stale = self::at(-$this->retryAfter);
        $look = $this->pdo->prepare('SELECT id, payload FROM jobs WHERE queue = ? AND available_at <= ? AND (reserved_at IS NULL OR reserved_at <= ?) ORDER BY id ASC LIMIT 1');
        $take = $this->pdo->prepare('UPDATE jobs SET reserved_at = ? WHERE id = ? AND (reserved_at IS NULL OR reserved_at <= ?)');
        for ($try = 0; $try < 16; $try++) {
            $look->execute([$queue, $now, $stale]);
            $row = $look->fetch(PDO::FETCH_ASSOC);
            $look->closeCursor();
            if ($row === false) {
                return null;
            }
            $take->execute([$now, $row['id'], $stale]);
            if ($take->rowCount() === 1) {
                return ['id' => (int) $row['id'], 'envelope' => json_decode($row['payload'], true, 512, JSON_THROW_ON_ERROR)];
            }
        }
        return null;
    }

    public function ack(int $id): bool
    {
        return $this->pdo->prepare('DELETE FROM jobs WHERE id = ?')->execute([$id]);
    }

    public function release(int $id, array $envelope, int $delay = 0): bool
    {
        return $this->pdo->prepare('UPDATE jobs SET payload = ?, attempts = ?, available_at = ?, reserved_at = NULL WHERE id = ?')
            ->execute([json_encode($envelope, self::FLAGS), $envelope['attempts'], self::at($delay), $id]);
    }

    public function dead(int $id, array $envelope, string $reason, string $queue = 'default'): bool
    {
        $envelope['dead_letter'] = ['reason' => $reason, 'error' => 'said by PHP', 'exception' => 'RuntimeException',
            'failed_at' => (int) (microtime(true) * 1000), 'original_queue' => $queue, 'attempts' => $envelope['attempts'], 'lang' => 'php'];
        $this->pdo->beginTransaction();
        $this->pdo->prepare('INSERT INTO jobs_failed (queue, urn, trace_id, attempts, payload, reason, failed_at, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)')
            ->execute([$queue, $envelope['job'] ?? $envelope['urn'], $envelope['trace_id'], $envelope['attempts'],
                json_encode($envelope, self::FLAGS), $reason, self::at(), self::at()]);
        $this->ack($id);
        return $this->pdo->commit();
    }

    public function replay(int $failed): int
    {
        $this->pdo->beginTransaction();
        $read = $this->pdo->prepare('SELECT payload FROM jobs_failed WHERE id = ?');
        $read->execute([$failed]);
        $envelope = json_decode($read->fetchColumn(), true, 512, JSON_THROW_ON_ERROR);
        $read->closeCursor();
        $queue = $envelope['dead_letter']['original_queue'] ?? $envelope['meta']['queue'];
        unset($envelope['dead_letter']);
        $envelope['attempts'] = 0;
        $id = $this->insert($envelope, $queue);
        $this->pdo->prepare('DELETE FROM jobs_failed WHERE id = ?')->execute([$failed]);
        $this->pdo->commit();
        return $id;
    }

    /** Work until nothing came for a while; urns in $failing fail. Returns [[row id, urn, attempts, outcome], …]. */
    public function work(array $failing = [], int $most = 1000, float $patience = 0.3, int $maxAttempts = 3): array
    {
        $done = [];
        $idle = microtime(true);
        while (count($done) < $most && microtime(true) - $idle < $patience) {
            $got = $this->reserve();
            if ($got === null) {
                usleep(10_000);
                continue;
            }
            $idle = microtime(true);
            $envelope = $got['envelope'];
            $urn = $envelope['job'] ?? $envelope['urn'];
            $attempts = $envelope['attempts'];
            if (!in_array($urn, $failing, true)) {
                $this->ack($got['id']);
                $done[] = [$got['id'], $urn, $attempts, 'ack', $envelope['data']];
                continue;
            }
            $envelope['attempts'] = $attempts + 1;
            if ($envelope['attempts'] >= $maxAttempts) {
                $this->dead($got['id'], $envelope, 'failed');
                $done[] = [$got['id'], $urn, $attempts, 'dead', $envelope['data']];
            } else {
                $this->release($got['id'], $envelope);
                $done[] = [$got['id'], $urn, $attempts, 'release', $envelope['data']];
            }
        }
        return $done;
    }
}

$pdo = new PDO($dsn, $user ?: null, null, [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
if ($pdo->getAttribute(PDO::ATTR_DRIVER_NAME) === 'sqlite') {
    $pdo->exec('PRAGMA busy_timeout = 10000');
}
$peer = new Peer($pdo, $say['retry_after'] ?? 90);
unset($say['timezone'], $say['retry_after']);
echo json_encode($peer->$command(...$say), JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE | JSON_THROW_ON_ERROR), "\n";
