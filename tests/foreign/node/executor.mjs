// What the packages ask of a database, over `pg` and `mysql2`.
async function postgres(url) {
  const { default: pg } = await import('pg');
  const pool = new pg.Pool({ connectionString: url, max: 8 });
  const rows = (on) => async (sql, params) => (await on.query(sql, params)).rows;
  return {
    dialect: 'postgres',
    escapeId: (id) => `"${id}"`,
    query: rows(pool),
    async transaction(fn) {
      const client = await pool.connect();
      try {
        await client.query('begin');
        const value = await fn({ query: rows(client) });
        await client.query('commit');
        return value;
      } catch (error) {
        await client.query('rollback').catch(() => {});
        throw error;
      } finally {
        client.release();
      }
    },
    end: () => pool.end(),
  };
}

async function mysql(url, isolation) {
  const { default: driver } = await import('mysql2/promise');
  const pool = driver.createPool({ uri: url, connectionLimit: 8, supportBigNumbers: true });
  if (isolation) pool.pool.on('connection', (c) => c.query(`set session transaction isolation level ${isolation}`));
  const rows = (on) => async (sql, params) => (await on.query(sql, params))[0];
  return {
    dialect: 'mysql',
    escapeId: (id) => '`' + id + '`',
    query: rows(pool),
    async transaction(fn) {
      const client = await pool.getConnection();
      try {
        await client.beginTransaction();
        const value = await fn({ query: rows(client) });
        await client.commit();
        return value;
      } catch (error) {
        await client.rollback().catch(() => {});
        throw error;
      } finally {
        client.release();
      }
    },
    end: () => pool.end(),
  };
}

export const executorFor = (url, isolation = '') => (url.startsWith('postgres') ? postgres(url) : mysql(url, isolation));
