from django.db import migrations

from holdfast.django.schema import HoldfastSchema


class Migration(migrations.Migration):
    dependencies = [("holdfast", "0015_shards_and_outcomes")]
    operations = [HoldfastSchema(16)]
