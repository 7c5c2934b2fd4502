from django.db import migrations

from holdfast.django.schema import HoldfastSchema


class Migration(migrations.Migration):
    dependencies = [("holdfast", "0011_runs")]
    operations = [HoldfastSchema(12)]
